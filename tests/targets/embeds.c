/* Embeds Python, which lives several times: embeds LIVES HOW, HOW being `string`, `module`, `thread` (string, on a thread of its own), `fork` (string, in a
 * child that C forks without telling Python) or `waits` (string; the first life says "ready" and waits for a line). Each life calls counted() a hundred times. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void Py_Initialize(void);
int Py_FinalizeEx(void);
int PyRun_SimpleString(const char *);
void *PyImport_ImportModule(const char *);

static const char counts[] = "def counted(n): return n\nfor n in range(100): counted(n)\n";
static const char waits[] = "print('ready', flush=True)\ninput()\n";

static void *live(void *how)
{
    Py_Initialize();
    int failed = 0;
    if (!strcmp(how, "fork") && fork())
        wait(&failed);
    else if (!strcmp(how, "module"))
        failed = !PyImport_ImportModule("embedded");
    else
        failed = (!strcmp(how, "waits") && PyRun_SimpleString(waits)) || PyRun_SimpleString(counts);
    return Py_FinalizeEx() || failed ? how : NULL;
}

int main(int count, char **words)
{
    char *how = count > 2 ? words[2] : "string";
    for (int lives = atoi(words[1]); lives; lives--) {
        pthread_t thread;
        void *failed = NULL;
        if (strcmp(how, "thread"))
            failed = live(how);
        else if (pthread_create(&thread, NULL, live, how) || pthread_join(thread, &failed))
            return 2;
        if (failed)
            return 1;
        if (!strcmp(how, "waits"))
            how = "string";
    }
    return 0;
}
