/* A libcuda that knows one captured graph, a kernel, a fill and a kernel of a library in a line, to see what the Python bindings
   really pass. Structures as in cuda.h of CUDA 13.0. Prints every call that makes or launches something to standard error. */
#include "stub_libcuda.h"

typedef struct {
    void *function;
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    void **arguments, **extra;
    void *kernel, *context;
} kernel_params;
typedef struct { uint64_t target; size_t pitch; unsigned value, element; size_t width, height; } memset_params;
typedef struct { unsigned char from_port, to_port, type, reserved[5]; } edge;

enum { KERNEL = 0, MEMSET = 2, CAPTURED = 7, CONTEXT = 77, LAST = 3 };
static uint64_t made = 100;
static int first_argument = 42;
static void *arguments[] = {&first_argument};

static uint64_t word(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }
static void *handle(uint64_t number) { return (void *)(uintptr_t)number; }

static int one(void **nodes, size_t *count, uint64_t node) {
    *count = node <= LAST;
    if (nodes && *count) nodes[0] = handle(node);
    return SUCCESS;
}

static int current(void **context) { *context = handle(CONTEXT); return SUCCESS; }
static int roots(void *graph, void **nodes, size_t *count) {
    if (word(graph) != CAPTURED) return NOT_FOUND;
    return one(nodes, count, 1);
}
static int dependents(void *node, void **nodes, edge *data, size_t *count) {
    if (nodes && data) memset(data, 0, sizeof *data);
    return one(nodes, count, word(node) + 1);
}
static int type(void *node, int *found) { *found = word(node) == 2 ? MEMSET : KERNEL; return SUCCESS; }
static int create(void **graph, unsigned flags) { *graph = handle(++made); return SUCCESS; }
static int destroy(void *graph) { fprintf(stderr, "destroy %lu\n", word(graph)); return SUCCESS; }
static int instantiate(void **executable, void *graph, unsigned long long flags) {
    *executable = handle(word(graph) + 1000);
    return SUCCESS;
}
static int destroy_executable(void *it) { fprintf(stderr, "destroy executable %lu\n", word(it)); return SUCCESS; }
static int launch(void *it, void *stream) { fprintf(stderr, "launch %lu on %lu\n", word(it), word(stream)); return SUCCESS; }

static int kernel_get(void *node, kernel_params *found) {
    memset(found, 0, sizeof *found);
    found->function = word(node) == 1 ? handle(501) : NULL;
    found->kernel = word(node) == 1 ? NULL : handle(603);
    found->grid_x = 10 * word(node), found->grid_y = 2, found->grid_z = 1;
    found->block_x = 128, found->block_y = 1, found->block_z = 1;
    found->shared_bytes = 4096, found->arguments = arguments;
    return SUCCESS;
}
static int kernel_add(void **node, void *graph, const void **before, size_t count, const kernel_params *given) {
    fprintf(stderr, "kernel in %lu after %lu: %lu/%lu grid %u %u %u block %u shared %u argument %d\n", word(graph), count,
            word(given->function), word(given->kernel), given->grid_x, given->grid_y, given->grid_z, given->block_x,
            given->shared_bytes, *(int *)given->arguments[0]);
    *node = handle(word(graph) + 2000);
    return SUCCESS;
}
static int copy_attributes(void *to, void *from) { fprintf(stderr, "attributes %lu from %lu\n", word(to), word(from)); return SUCCESS; }
static int function_of(void **function, void *kernel) { *function = handle(word(kernel) - 100); return SUCCESS; }
static int name_of(const char **name, void *function) {
    *name = word(function) == 501 ? "triton_red_fused_1" : "sm90_xmma_gemm";
    return SUCCESS;
}
static int occupancy(int *found, void *function, int threads, size_t shared) {
    *found = threads == 128 && shared == 4096 ? 5 : -1;
    return SUCCESS;
}
static int memset_get(void *node, memset_params *found) {
    *found = (memset_params){.target = 4711, .pitch = 0, .value = 9, .element = 4, .width = 16, .height = 1};
    return SUCCESS;
}
static int memset_add(void **node, void *graph, const void **before, size_t count, const memset_params *given, void *context) {
    fprintf(stderr, "memset in %lu after %lu: %lu value %u x %lu in %lu\n", word(graph), count, given->target, given->value,
            given->width, word(context));
    *node = handle(word(graph) + 2000);
    return SUCCESS;
}

int cuGetProcAddress_v2(const char *symbol, void **found, int at_version, uint64_t flags, int *status) {
    static const known_call known[] = {
        {"cuCtxGetCurrent", current}, {"cuGraphGetRootNodes", roots}, {"cuGraphNodeGetDependentNodes", dependents},
        {"cuGraphNodeGetType", type}, {"cuGraphCreate", create}, {"cuGraphDestroy", destroy},
        {"cuGraphInstantiate", instantiate}, {"cuGraphInstantiateWithFlags", instantiate},
        {"cuGraphExecDestroy", destroy_executable}, {"cuGraphLaunch", launch}, {"cuGraphKernelNodeGetParams", kernel_get},
        {"cuGraphAddKernelNode", kernel_add}, {"cuGraphKernelNodeCopyAttributes", copy_attributes},
        {"cuKernelGetFunction", function_of}, {"cuFuncGetName", name_of},
        {"cuOccupancyMaxActiveBlocksPerMultiprocessor", occupancy}, {"cuGraphMemsetNodeGetParams", memset_get},
        {"cuGraphAddMemsetNode", memset_add}, {"cuGetProcAddress", cuGetProcAddress_v2},
    };
    (void)at_version, (void)flags;
    return look_up(known, sizeof known / sizeof *known, symbol, found, status);
}
