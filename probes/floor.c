/* The floor of the cost: programs that do nothing, for the benchmarks and for the probe cost in the manifest. */
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
