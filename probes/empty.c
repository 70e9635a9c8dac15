/* Programs that do nothing, for the benchmarks: what probes cost whatever is done at them. */
#include <uapi/linux/ptrace.h>

int function_entry(struct pt_regs *ctx)
{
    return 0;
}

int function_return(struct pt_regs *ctx)
{
    return 0;
}

int function_never(struct pt_regs *ctx)
{
    return 0;
}
