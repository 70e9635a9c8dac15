/* A parallel region of known size: a pool of threads that never see Python, each of which computes for so much CPU time. */
#include <pthread.h>
#include <time.h>

#define MOST 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER, ended = PTHREAD_COND_INITIALIZER;
static int workers, round_number, busy;
static double wanted;
static double used[MOST];

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void *work(void *arg)
{
    int seen = 0;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (round_number == seen)
            pthread_cond_wait(&begun, &lock);
        seen = round_number;
        double seconds = wanted, start = cpu_seconds();
        pthread_mutex_unlock(&lock);
        while (cpu_seconds() - start < seconds)
            ;
        pthread_mutex_lock(&lock);
        used[(long)arg] += cpu_seconds() - start;
        if (!--busy)
            pthread_cond_signal(&ended);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

void start(int count)
{
    workers = count;
    for (long i = 0; i < count; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)i);
    }
}

/* Every worker computes for `seconds`; returns when all have. */
double parallel(double seconds)
{
    double before = 0, after = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < workers; i++)
        before += used[i];
    wanted = seconds;
    busy = workers;
    round_number++;
    pthread_cond_broadcast(&begun);
    while (busy)
        pthread_cond_wait(&ended, &lock);
    for (int i = 0; i < workers; i++)
        after += used[i];
    pthread_mutex_unlock(&lock);
    return after - before;
}
