/* The path of an operation through the recorder, without a Python frame.
 *
 * What is common is done here: plain tensors on the CPU. Anything else goes to the Python that recorder.py and
 * tally.py run by themselves where this is not built, on the same tables. Addresses serve as keys; the recorder keeps
 * what lies there alive. Tensors are read through DLPack's table of C functions, so that nothing of torch is compiled
 * in. */
#include "_path_tables.h"

/* ---- DLPack 1.3 ---------------------------------------------------------------------------------------------------- */

typedef struct { int32_t type, id; } Device;
typedef struct { uint8_t code, bits; uint16_t lanes; } Dtype;
typedef struct {
    void *data;
    Device device;
    int32_t ndim;
    Dtype dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Tensor;
typedef struct {
    uint32_t major, minor;
    void *older;
    void *allocate, *manage, *to_python;
    int (*read)(void *tensor, Tensor *out);
    void *stream;
} Exchange;

enum { ON_CPU = 1, MAX_DIMS = 16 };
enum { INTEGER = 0, UNSIGNED = 1, FLOAT = 2, BFLOAT = 4, BOOLEAN = 6 };

/* ---- the type ------------------------------------------------------------------------------------------------------ */

/* What is asked of Python, in the order of Path's arguments; see compiled.py. */
enum { EXECUTE, WAY, FAILED, GAVE_WAY, PLAN, CLASSIFY, ORIGIN, LOST, NOTE, MEASURE, COPIED, CONSTANTS, CROSSED,
       HOOK, GRADIENT, GRAD_ENABLED, CURRENT_NODE, SEQUENCE, PLAIN, PARAMETER, PHASES, DTYPES_NAMED, SIDES, CALLS_WANTED };
enum { SKIP, VIEW, SAME, CAST, COPY, MEASURED }; /* as in ops.py */

typedef struct { PyObject *name, *call; int kind, rounds; } Plan; /* call: runs it */

typedef struct { PyObject *module; int64_t current; int recomputing; } Call; /* and what ran before it */
typedef struct {
    int64_t calls, recomputed, order, filled; /* filled: by so many arguments, leaving no keyword */
    PyObject *path;
} Visits;

/* Memory that the next recorder uses again: mapping it anew costs a page fault for every 4 kB. */
typedef struct {
    Map plans, kinds, origins, numbers, indices, doors;
    Plan *plan_list;
    PyObject **nodes; /* the origin of each node since first_node */
    Call *stack;
    Visits *visits;
    int64_t plan_room, node_room, stack_room, visit_room;
    Seen *seen;
} Blocks;

typedef struct {
    PyObject_HEAD
    PyObject *calls[CALLS_WANTED];
    PyObject *names; /* the fields of a Site: its number */
    int (*read)(void *, Tensor *);
    int64_t threads, operations, first_node, next_node, plan_count;
    Blocks own;
    Ledger ledger;
    unsigned long thread;
    int64_t depth, current, foreign, ran, module_count;
    int recomputing, layers; /* layers: modules' results are measured, and operations not */
} Path;

static PyObject *F_BACK, *F_LASTI, *F_LOCALS, *KWARGS, *VERSION, *SEQUENCE_NR, *PATH, *MODULE, *FILE_NAME, *LINE, *INPUT_NAME,
    *OUTPUT_NAME, *NOWHERE, *NO_LINE, *STORAGE, *DATA_PTR, *NBYTES;
#define ADDRESS(x) ((uint64_t)(uintptr_t)(x))

static int truth(PyObject *answer)
{
    int yes = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return yes;
}

static int integer(PyObject *answer, int64_t *out)
{
    if (!answer) return -1;
    *out = (int64_t)PyLong_AsUnsignedLongLongMask(answer); /* the largest node number is 2^64 - 1 */
    Py_DECREF(answer);
    return PyErr_Occurred() ? -1 : 0;
}

/* An item of a list or tuple, held: a list may change while Python is asked; NULL where it has become shorter. */
static PyObject *item_of(PyObject *row, Py_ssize_t place)
{
    PyObject *item = PySequence_GetItem(row, place);
    if (!item) PyErr_Clear();
    return item;
}

/* ---- origins ------------------------------------------------------------------------------------------------------- */

/* The running line of the user's, as source.py finds it: the address of its code and its instruction. */
static int spot(Path *p, uint64_t *code_at, int64_t *lasti)
{
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    int64_t kind = 0;
    *code_at = 0, *lasti = 0;
    Py_XINCREF(frame);
    while (frame && frame != Py_None) {
        PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
        uint64_t at = ADDRESS(code);
        if (!map_get(&p->own.kinds, at, 0, 0, &kind)
            && (integer(PyObject_CallFunctionObjArgs(p->calls[CLASSIFY], code, NULL), &kind)
                || map_put(&p->own.kinds, at, 0, 0, kind))) {
            Py_DECREF(code);
            Py_DECREF(frame);
            return -1;
        }
        Py_DECREF(code);
        if (kind) {
            int failed = kind == 1 && integer(PyObject_GetAttr(frame, F_LASTI), lasti);
            if (kind == 1) *code_at = at;
            Py_DECREF(frame);
            return failed ? -1 : 0;
        }
        PyObject *back = PyObject_GetAttr(frame, F_BACK);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return frame ? 0 : PyErr_Occurred() ? -1 : 0;
}

static PyObject *origin_here(Path *p)
{
    uint64_t code;
    int64_t lasti, module, known;
    if (spot(p, &code, &lasti)) return NULL;
    module = p->current;
    if (map_get(&p->own.origins, code, (uint64_t)lasti, (uint64_t)module, &known)) return (PyObject *)(intptr_t)known;
    PyObject *origin = PyObject_CallFunction(p->calls[ORIGIN], "KL", (unsigned long long)code, (long long)lasti);
    if (!origin) return NULL;
    Py_DECREF(origin); /* the recorder holds it */
    return map_put(&p->own.origins, code, (uint64_t)lasti, (uint64_t)module, (int64_t)(intptr_t)origin) ? NULL : origin;
}

static PyObject *node_origin(const Path *p, int64_t number)
{
    return number >= p->first_node && number < p->next_node ? p->own.nodes[number - p->first_node] : NULL;
}

static int nodes_made(Path *p, int64_t sequence, PyObject *origin)
{
    if (sequence - p->first_node > p->own.node_room) {
        int64_t room = 2 * (sequence - p->first_node) + 1024;
        PyObject **wide = realloc(p->own.nodes, (size_t)room * sizeof *wide);
        if (!wide) { PyErr_NoMemory(); return -1; }
        p->own.nodes = wide;
        p->own.node_room = room;
    }
    while (p->next_node < sequence) p->own.nodes[p->next_node++ - p->first_node] = origin;
    return 0;
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

/* 1 for a plain tensor on the CPU, which `t` then describes; 0 for anything else. */
static int plain(const Path *p, PyObject *value, Tensor *t)
{
    PyObject *type = (PyObject *)Py_TYPE(value);
    if (type != p->calls[PLAIN] && type != p->calls[PARAMETER]) return 0;
    if (!p->read(value, t)) return t->device.type == ON_CPU && t->ndim <= MAX_DIMS;
    PyErr_Clear(); /* a layout or dtype that DLPack has no word for */
    return 0;
}

static int dtype_of(const Tensor *t)
{
    if (t->dtype.lanes != 1) return NONE;
    if (t->dtype.code == FLOAT) return t->dtype.bits == 32 ? F32 : t->dtype.bits == 64 ? F64 : t->dtype.bits == 16 ? F16 : NONE;
    return t->dtype.code == BFLOAT && t->dtype.bits == 16 ? BF16 : NONE;
}

static int no_float(const Tensor *t)
{
    return t->dtype.code == INTEGER || t->dtype.code == UNSIGNED || t->dtype.code == BOOLEAN;
}

static int64_t elements(const Tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->shape[i];
    return n;
}

/* Whether the elements fill one stretch of memory, in whatever order. */
static int dense(const Tensor *t, int64_t n)
{
    int64_t expected = 1;
    int i = t->ndim;
    if (!t->strides) return 1;
    while (i-- && (t->shape[i] == 1 || t->strides[i] == expected)) expected *= t->shape[i];
    if (i < 0 || !n) return 1;
    for (expected = 1; expected < n;) {
        for (i = 0; i < t->ndim && (t->shape[i] == 1 || t->strides[i] != expected); i++) {}
        if (i == t->ndim) return 0;
        expected *= t->shape[i];
    }
    return 1;
}

/* 1 with the version of a tensor, 0 where nobody counts the writes to it. */
static int version_of(PyObject *tensor, int64_t *version)
{
    PyObject *found = PyObject_GetAttr(tensor, VERSION);
    if (found && !integer(found, version)) return 1;
    PyErr_Clear();
    return 0;
}

static int remember(Path *p, PyObject *tensor, int64_t row)
{
    int64_t version;
    if (!version_of(tensor, &version)) return 0;
    PyObject *weak = PyWeakref_NewRef(tensor, NULL);
    if (!weak) return -1;
    seen_remember(p->own.seen, tensor, weak, version, row);
    return 0;
}

static int64_t row_of(Path *p, PyObject *tensor)
{
    const Memory *found = seen_find(p->own.seen, tensor);
    int64_t version;
    if (!found) return NONE;
    Memory m = *found; /* asking for the version may run Python, which may remember other tensors there */
    PyObject *still = PyObject_CallNoArgs(m.weak);
    if (!still) PyErr_Clear();
    Py_XDECREF(still); /* the caller holds the tensor */
    if (still != tensor || !version_of(tensor, &version)) return NONE;
    return version == m.version ? m.row : NONE;
}

/* The same, of rows that can still be shared. */
static int64_t shared_row(Path *p, PyObject *tensor)
{
    int64_t row = row_of(p, tensor);
    return row >= p->ledger.first_row ? row : NONE;
}

static PyObject *slot_name(int input, int place)
{
    PyObject *slot = input ? INPUT_NAME : OUTPUT_NAME;
    return place < 0 ? Py_NewRef(slot) : PyUnicode_FromFormat("%U[%d]", slot, place);
}

static int ask_to_measure(Path *p, PyObject *origin, PyObject *backward, const Plan *plan, int slot, PyObject *tensor)
{
    PyObject *name = slot_name(0, slot), *done = NULL;
    if (name) done = PyObject_CallFunctionObjArgs(p->calls[MEASURE], origin, backward, plan->name, name, tensor, NULL);
    Py_XDECREF(name);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The number of a site, as book.py gives it. */
static int number_for(Path *p, PyObject *module, PyObject *op, PyObject *slot, int backward, int dtype, PyObject *file,
                      PyObject *line, int64_t *number)
{
    PyObject *phase = PyTuple_GetItem(p->calls[PHASES], backward), *name = PyTuple_GetItem(p->calls[DTYPES_NAMED], dtype);
    PyObject *key = slot && phase && name ? PyTuple_Pack(7, module, op, slot, phase, name, file, line) : NULL;
    PyObject *known = key ? PyDict_GetItemWithError(p->names, key) : NULL, *fresh = NULL;
    if (known) {
        *number = PyLong_AsLongLong(known);
    } else if (key && !PyErr_Occurred()) {
        *number = PyDict_Size(p->names);
        fresh = PyLong_FromLongLong(*number);
        if (fresh) PyDict_SetItem(p->names, key, fresh);
    }
    Py_XDECREF(fresh);
    Py_XDECREF(key);
    return PyErr_Occurred() ? -1 : 0;
}

static int number_of(Path *p, PyObject *origin, PyObject *backward, const Plan *plan, int slot, int dtype, int64_t *number)
{
    uint64_t kind = ADDRESS(plan->name) << 1 | (backward == Py_True), place = (uint64_t)(slot + 1) << 8 | (uint64_t)dtype;
    if (map_get(&p->own.numbers, ADDRESS(origin), kind, place, number)) return 0;
    PyObject *module = PyObject_GetAttr(origin, MODULE), *file = PyObject_GetAttr(origin, FILE_NAME);
    PyObject *line = PyObject_GetAttr(origin, LINE), *name = slot_name(0, slot);
    int failed = !module || !file || !line
        || number_for(p, module, plan->name, name, backward == Py_True, dtype, file, line, number);
    Py_XDECREF(module), Py_XDECREF(file), Py_XDECREF(line), Py_XDECREF(name);
    return failed || map_put(&p->own.numbers, ADDRESS(origin), kind, place, *number) ? -1 : 0;
}

/* Measures a plain tensor for a site and remembers it. */
static int measure(Path *p, PyObject *tensor, const Tensor *t, int64_t number)
{
    Tally tally;
    tally_memory((const char *)t->data + t->byte_offset, elements(t), dtype_of(t), p->threads, &tally);
    int64_t row = ledger_take(&p->ledger, number, &tally);
    return row < 0 ? -1 : remember(p, tensor, row);
}

/* Whether a plain tensor is one to be measured here. */
static int readable(const Tensor *t)
{
    int64_t n = elements(t);
    return dtype_of(t) != NONE && (!n || t->data) && dense(t, n);
}

/* What a storage answers to a question, as a number; 0 where it does not. */
static int asked(PyObject *storage, PyObject *name, uint64_t *out)
{
    PyObject *answer = storage ? PyObject_CallMethodObjArgs(storage, name, NULL) : NULL;
    if (answer) *out = PyLong_AsUnsignedLongLongMask(answer);
    Py_XDECREF(answer);
    return answer && !PyErr_Occurred();
}

/* Whether a plain, dense tensor lies within the memory of its storage, which may have been freed or shrunk under it. An
 * operation has just written its results, so that this is for what comes from elsewhere. */
static int in_memory(PyObject *tensor, const Tensor *t)
{
    uint64_t base = 0, size = 0, start = ADDRESS(t->data) + t->byte_offset;
    uint64_t wanted = (uint64_t)elements(t) * t->dtype.bits / 8;
    PyObject *storage = PyObject_CallMethodObjArgs(tensor, STORAGE, NULL);
    int known = asked(storage, DATA_PTR, &base) && asked(storage, NBYTES, &size);
    Py_XDECREF(storage);
    if (!known) PyErr_Clear();
    return !wanted || (known && start >= base && wanted <= size && start - base <= size - wanted);
}

/* Measures a result, or one of several, if it is a tensor of floating-point numbers or holds some. */
static int result(Path *p, PyObject *origin, PyObject *backward, const Plan *plan, int slot, PyObject *tensor)
{
    Tensor t;
    int64_t number;
    if (!plain(p, tensor, &t)) return ask_to_measure(p, origin, backward, plan, slot, tensor);
    if (no_float(&t)) return 0;
    if (!readable(&t)) return ask_to_measure(p, origin, backward, plan, slot, tensor);
    return number_of(p, origin, backward, plan, slot, dtype_of(&t), &number) ? -1 : measure(p, tensor, &t, number);
}

static int results(Path *p, PyObject *origin, PyObject *backward, const Plan *plan, PyObject *args, PyObject *out)
{
    int list = PyList_CheckExact(out);
    if (!list && !PyTuple_CheckExact(out)) {
        if (out == Py_None) return 0;
        if (result(p, origin, backward, plan, NONE, out)) return -1;
        Tensor t;
        if (!plan->rounds || backward == Py_True || !plain(p, out, &t) || t.dtype.bits != 16) return 0;
        PyObject *done = PyObject_CallFunctionObjArgs(p->calls[CONSTANTS], origin, plan->name, args, out, NULL);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    Py_ssize_t count = list ? PyList_Size(out) : PyTuple_Size(out);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = item_of(out, i);
        int failed = item && item != Py_None && result(p, origin, backward, plan, (int)i, item);
        Py_XDECREF(item);
        if (failed) return -1;
    }
    return 0;
}

static int inherit(Path *p, PyObject *source, PyObject *out)
{
    Tensor before, after;
    int64_t row = shared_row(p, source);
    if (row < 0 || !plain(p, source, &before) || !plain(p, out, &after) || elements(&before) != elements(&after)) return 0;
    return remember(p, out, row);
}

static int copied(Path *p, PyObject *origin, PyObject *backward, const Plan *plan, PyObject *source, PyObject *out)
{
    Tensor before, after;
    if (plain(p, source, &before) && plain(p, out, &after) && before.dtype.code == after.dtype.code
        && before.dtype.bits == after.dtype.bits) {
        if (inherit(p, source, out)) return -1;
        return shared_row(p, out) >= 0 ? 0 : result(p, origin, backward, plan, NONE, out);
    }
    PyObject *done = PyObject_CallFunctionObjArgs(p->calls[COPIED], plan->name, origin, backward, source, out, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* ---- an operation -------------------------------------------------------------------------------------------------- */

static const Plan *plan_of(Path *p, PyObject *func)
{
    int64_t at;
    if (map_get(&p->own.plans, ADDRESS(func), 0, 0, &at)) return &p->own.plan_list[at];
    PyObject *known = PyObject_CallFunctionObjArgs(p->calls[PLAN], func, NULL);
    Plan plan = {0};
    int parsed = known && PyArg_ParseTuple(known, "OiiO", &plan.name, &plan.kind, &plan.rounds, &plan.call);
    Py_XDECREF(known); /* the recorder holds what is in it */
    if (!parsed) return NULL;
    if (p->plan_count == p->own.plan_room) {
        int64_t room = 2 * p->own.plan_room + 64;
        Plan *wide = realloc(p->own.plan_list, (size_t)room * sizeof *wide);
        if (!wide) { PyErr_NoMemory(); return NULL; }
        p->own.plan_list = wide;
        p->own.plan_room = room;
    }
    p->own.plan_list[p->plan_count] = plan;
    return map_put(&p->own.plans, ADDRESS(func), 0, 0, p->plan_count) ? NULL : &p->own.plan_list[p->plan_count++];
}

/* Whose operation it is: 1 with origin and phase, 0 if it has none, 2 if Python has to find out, -1 on failure. */
static int whose(Path *p, PyObject **origin, PyObject **backward)
{
    int64_t number;
    PyObject *node = PyObject_CallObject(p->calls[CURRENT_NODE], NULL);
    if (!node) return -1;
    *backward = node == Py_None ? Py_False : Py_True;
    if (node == Py_None) {
        Py_DECREF(node);
        *origin = origin_here(p);
        return *origin ? 1 : -1;
    }
    /* a node of a class that the program has made runs lines of the program */
    int again = p->recomputing || (PyType_GetFlags(Py_TYPE(node)) & Py_TPFLAGS_HEAPTYPE);
    if (!again) again = truth(PyObject_CallObject(p->calls[GRAD_ENABLED], NULL));
    if (again) {
        Py_DECREF(node);
        return again < 0 ? -1 : 2;
    }
    int failed = integer(PyObject_CallMethodObjArgs(node, SEQUENCE_NR, NULL), &number);
    Py_DECREF(node);
    if (failed) return -1;
    if (number == -1) return 0; /* adds up a gradient */
    *origin = node_origin(p, number);
    if (!*origin) { /* the recorder holds it */
        *origin = PyObject_CallObject(p->calls[LOST], NULL);
        Py_XDECREF(*origin);
    }
    return *origin ? 1 : -1;
}

static int note(Path *p, const Plan *plan, PyObject *func, PyObject *args, PyObject *out)
{
    PyObject *origin, *backward, *first;
    int64_t sequence;
    if (integer(PyObject_CallObject(p->calls[SEQUENCE], NULL), &sequence)) return -1;
    if (sequence == p->next_node) { /* no node of the graph is to be attributed */
        if (plan->kind == SKIP || plan->kind == VIEW) return 0;
        if (plan->kind == SAME) return PyTuple_Size(args) ? inherit(p, PyTuple_GetItem(args, 0), out) : 0;
    }
    int who = whose(p, &origin, &backward);
    if (who == 2) {
        PyObject *done = PyObject_CallFunctionObjArgs(p->calls[NOTE], func, args, out, NULL);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    if (who <= 0) return who;
    if (nodes_made(p, sequence, origin)) return -1;
    if (plan->kind == MEASURED) return results(p, origin, backward, plan, args, out);
    if (plan->kind == SKIP || plan->kind == VIEW || PyTuple_Size(args) <= (plan->kind == COPY)) return 0;
    first = PyTuple_GetItem(args, plan->kind == COPY);
    return plan->kind == SAME ? inherit(p, first, out) : copied(p, origin, backward, plan, first, out);
}

static PyObject *run(Path *p, const Plan *plan, PyObject *func, PyObject *args, PyObject *kwargs)
{
    PyObject *out, *none = NULL;
    if (p->calls[EXECUTE] == Py_None) {
        out = PyObject_Call(plan->call, args, kwargs);
    } else {
        if (!kwargs) kwargs = none = PyDict_New();
        out = kwargs ? PyObject_CallFunctionObjArgs(p->calls[EXECUTE], func, args, kwargs, NULL) : NULL;
        Py_XDECREF(none);
    }
    if (out || !PyErr_ExceptionMatches(PyExc_Exception)) return out;
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    PyObject *done = PyObject_CallFunctionObjArgs(p->calls[FAILED], func, error, NULL);
    Py_XDECREF(done);
    if (!done) PyErr_Clear(); /* the error of the operation is the one to raise */
    PyErr_Restore(kind, error, trace);
    return NULL;
}

/* An error of our own: the recorder may take it, so that what it watches goes on. 0 if it has. */
static int gave_way(Path *p)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    PyObject *done = PyObject_CallFunctionObjArgs(p->calls[GAVE_WAY], error, NULL);
    Py_XDECREF(done);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return done ? 0 : -1;
}

/* What is to become of an operation on a subclass: recorded as any other, taken apart first, or not looked at. */
enum { RECORDED, APART, UNSEEN };

static PyObject *dispatched(Path *p, PyObject *const *argv, Py_ssize_t count)
{
    if (count < 3 || count > 4) return PyErr_Format(PyExc_TypeError, "expected func, types, args, kwargs, got %zd", count);
    PyObject *kwargs = count == 4 && argv[3] != Py_None && PyDict_Size(argv[3]) ? argv[3] : NULL;
    for (Py_ssize_t i = 0, kinds = PyTuple_Size(argv[1]); i < kinds; i++) {
        PyObject *kind = PyTuple_GetItem(argv[1], i);
        if (kind == p->calls[PLAIN] || kind == p->calls[PARAMETER]) continue;
        int64_t way;
        if (integer(PyObject_CallFunctionObjArgs(p->calls[WAY], argv[1], NULL), &way)) return NULL;
        if (way == APART) return Py_NewRef(Py_NotImplemented);
        if (way == UNSEEN) return PyObject_Call(argv[0], argv[2], kwargs);
        break;
    }
    const Plan *found = plan_of(p, argv[0]);
    if (!found) return NULL;
    Plan plan = *found; /* the list may move while others run */
    p->operations++;
    PyObject *out = run(p, &plan, argv[0], argv[2], kwargs);
    if (out && note(p, &plan, argv[0], argv[2], out) && gave_way(p)) Py_CLEAR(out);
    return out;
}

/* The mode's own method: torch wants it to be bound to the mode. */
static PyObject *dispatch(PyObject *mode, PyObject *const *argv, Py_ssize_t count)
{
    PyObject *path = PyObject_GetAttr(mode, PATH);
    if (!path) return NULL;
    PyObject *out = dispatched((Path *)path, argv, count);
    Py_DECREF(path);
    return out;
}

/* ---- modules ------------------------------------------------------------------------------------------------------- */

enum { INPUT, OUTPUT, RESULT, GRADIENT_OF }; /* what is measured of a module */

static int door(Path *p, int64_t module, int side, int place, const Tensor *t, int64_t *number)
{
    uint64_t where = (uint64_t)(place + 1) << 16 | (uint64_t)dtype_of(t) << 8 | (uint64_t)side;
    if (map_get(&p->own.doors, (uint64_t)module, where, 0, number)) return 0;
    PyObject *name = slot_name(side == INPUT, place), *op = PyTuple_GetItem(p->calls[SIDES], side);
    int failed = !op
        || number_for(p, p->own.visits[module].path, op, name, side == GRADIENT_OF, dtype_of(t), NOWHERE, NO_LINE, number);
    Py_XDECREF(name);
    return failed || map_put(&p->own.doors, (uint64_t)module, where, 0, *number) ? -1 : 0;
}

/* 1 where Python has to look. */
static int cross_one(Path *p, int64_t module, int side, int place, PyObject *tensor)
{
    Tensor t;
    int64_t number;
    if (!plain(p, tensor, &t)) return 1;
    if (no_float(&t)) return 0;
    if (dtype_of(&t) == NONE) return 1;
    if (shared_row(p, tensor) < 0) {
        if (!readable(&t) || !in_memory(tensor, &t)) return 1;
        if (p->layers && side == OUTPUT) { /* as of an operation; then it has a row */
            if (door(p, module, RESULT, place, &t, &number) || measure(p, tensor, &t, number)) return -1;
            PyObject *done = PyObject_CallFunction(p->calls[HOOK], "LiO", (long long)module, place, tensor);
            Py_XDECREF(done);
            if (!done) return -1;
        }
    }
    if (door(p, module, side, place, &t, &number)) return -1;
    int64_t row = shared_row(p, tensor); /* asked last: whatever runs Python may add rows, and these are added up */
    return row < 0 ? measure(p, tensor, &t, number) : ledger_add(&p->ledger, number, &p->ledger.rows[row - p->ledger.first_row]);
}

static PyObject *py_gradient(PyObject *self, PyObject *const *argv, Py_ssize_t count)
{
    Path *p = (Path *)self;
    Tensor t;
    int64_t number;
    long long module = count == 3 ? PyLong_AsLongLong(argv[0]) : 0, place = count == 3 ? PyLong_AsLongLong(argv[1]) : 0;
    if (PyErr_Occurred()) return NULL;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "expected module, place and gradient, got %zd values", count);
    if (argv[2] == Py_None) Py_RETURN_NONE; /* of a result that nothing uses, beside one that is used */
    if (!plain(p, argv[2], &t) || !readable(&t)) {
        PyObject *done = PyObject_CallFunction(p->calls[GRADIENT], "LLO", module, place, argv[2]);
        Py_XDECREF(done);
        if (!done) return NULL;
    } else if (door(p, module, GRADIENT_OF, (int)place, &t, &number) || measure(p, argv[2], &t, number)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static int cross_in_python(Path *p, int64_t module, PyObject *slot, PyObject *value)
{
    PyObject *done = slot ? PyObject_CallFunction(p->calls[CROSSED], "LOO", (long long)module, slot, value) : NULL;
    Py_XDECREF(slot);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Notes the tensors that enter or leave a module; Python looks through what is neither a tensor nor a row of some. */
static int cross(Path *p, int64_t module, int output, PyObject *value)
{
    int list = PyList_CheckExact(value), failed = 0;
    if (!list && !PyTuple_CheckExact(value)) {
        int odd = value == Py_None ? 0 : cross_one(p, module, output, NONE, value);
        return odd > 0 ? cross_in_python(p, module, slot_name(!output, NONE), value) : odd;
    }
    Py_ssize_t count = list ? PyList_Size(value) : PyTuple_Size(value);
    for (Py_ssize_t i = 0; i < count && failed >= 0; i++) {
        PyObject *item = item_of(value, i);
        failed = !item || item == Py_None ? 0 : cross_one(p, module, output, (int)i, item);
        if (failed > 0) failed = cross_in_python(p, module, slot_name(!output, (int)i), item);
        Py_XDECREF(item);
    }
    return failed < 0 ? -1 : 0;
}

static int in_backward(Path *p)
{
    PyObject *node = PyObject_CallObject(p->calls[CURRENT_NODE], NULL);
    Py_XDECREF(node);
    return node ? node != Py_None : -1;
}

/* Autograd's own threads carry the recorder with them; a thread of the user's does not. */
static int elsewhere(Path *p)
{
    return PyThread_get_thread_ident() == p->thread ? 0 : !in_backward(p);
}

static int keywords_cross(Path *p, int64_t module)
{
    /* A global hook is not given them: they are a variable of the function that calls it. */
    PyObject *frame = (PyObject *)PyEval_GetFrame(), *locals = frame ? PyObject_GetAttr(frame, F_LOCALS) : NULL;
    PyObject *kwargs = locals ? PyObject_GetItem(locals, KWARGS) : NULL;
    int failed = 0;
    if (!kwargs) PyErr_Clear();
    else if (PyDict_CheckExact(kwargs) && PyDict_Size(kwargs))
        failed = cross_in_python(p, module, slot_name(1, NONE), kwargs);
    Py_XDECREF(kwargs);
    Py_XDECREF(locals);
    return failed;
}

/* An error of our own at a module's door is no error of the module. */
static PyObject *spared(Path *p)
{
    return gave_way(p) ? NULL : Py_NewRef(Py_None);
}

static PyObject *py_enter(PyObject *self, PyObject *const *argv, Py_ssize_t count)
{
    Path *p = (Path *)self;
    int64_t index;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "expected module and args, got %zd values", count);
    if (elsewhere(p)) {
        p->foreign++;
        Py_RETURN_NONE;
    }
    if (p->depth == p->own.stack_room) {
        int64_t room = 2 * p->own.stack_room + 64;
        Call *wide = realloc(p->own.stack, (size_t)room * sizeof *wide);
        if (!wide) return PyErr_NoMemory();
        p->own.stack = wide;
        p->own.stack_room = room;
    }
    p->own.stack[p->depth++] = (Call){Py_NewRef(argv[0]), p->current, p->recomputing};
    int backward = in_backward(p);
    if (backward < 0) return NULL;
    if (backward) p->recomputing = 1;
    if (!map_get(&p->own.indices, ADDRESS(argv[0]), 0, 0, &index)) Py_RETURN_NONE;
    p->current = index;
    Visits *seen = &p->own.visits[index];
    int64_t filled = seen->filled; /* kept: what crosses may run Python, and another thread may move the visits */
    if (p->recomputing) {
        seen->recomputed++;
        Py_RETURN_NONE;
    }
    if (!seen->calls++) seen->order = p->ran++;
    if (cross(p, index, 0, argv[1])) return spared(p);
    if ((filled < 0 || PyTuple_Size(argv[1]) < filled) && keywords_cross(p, index)) return spared(p);
    Py_RETURN_NONE;
}

static void left(Path *p)
{
    Call call = p->own.stack[--p->depth];
    p->current = call.current;
    p->recomputing = call.recomputing;
    Py_DECREF(call.module);
}

static PyObject *py_leave(PyObject *self, PyObject *const *argv, Py_ssize_t count)
{
    Path *p = (Path *)self;
    int64_t index, at = p->depth;
    if (count != 3) return PyErr_Format(PyExc_TypeError, "expected module, args and output, got %zd values", count);
    while (at && p->own.stack[at - 1].module != argv[0]) at--;
    if (!at || elsewhere(p)) Py_RETURN_NONE;
    if (!p->recomputing && map_get(&p->own.indices, ADDRESS(argv[0]), 0, 0, &index) && cross(p, index, 1, argv[2])
        && gave_way(p)) return NULL;
    /* Above it lie modules that were left by an exception which no hook is told of. */
    while (p->depth >= at) left(p);
    Py_RETURN_NONE;
}

static PyObject *py_start(PyObject *self, PyObject *layers)
{
    Path *p = (Path *)self;
    p->layers = PyObject_IsTrue(layers);
    while (p->depth) left(p);
    p->current = p->recomputing = 0;
    p->thread = PyThread_get_thread_ident();
    Py_RETURN_NONE;
}

static PyObject *py_name(PyObject *self, PyObject *modules)
{
    Path *p = (Path *)self;
    Py_ssize_t count = PyList_Size(modules);
    if (count < 0) return NULL;
    if (count > p->own.visit_room) {
        Visits *wide = realloc(p->own.visits, (size_t)count * sizeof *wide);
        if (!wide) return PyErr_NoMemory();
        p->own.visits = wide;
        p->own.visit_room = count;
    }
    if (count > p->module_count)
        memset(p->own.visits + p->module_count, 0, (size_t)(count - p->module_count) * sizeof *p->own.visits);
    for (; p->module_count < count; p->module_count++) {
        PyObject *module, *path;
        long long filled;
        PyObject *told = PySequence_GetItem(modules, (Py_ssize_t)p->module_count);
        int parsed = told && PyArg_ParseTuple(told, "OOL", &module, &path, &filled);
        Py_XDECREF(told); /* the list holds it */
        if (!parsed) return NULL;
        p->own.visits[p->module_count].filled = filled;
        p->own.visits[p->module_count].path = Py_NewRef(path);
        if (map_put(&p->own.indices, ADDRESS(module), 0, 0, p->module_count)) return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *py_visits(PyObject *self, PyObject *unused)
{
    Path *p = (Path *)self;
    PyObject *found = PyList_New(0);
    for (int64_t i = 0; found && i < p->module_count; i++) {
        Visits v = p->own.visits[i];
        PyObject *row = Py_BuildValue("LLL", (long long)v.calls, (long long)v.recomputed, v.calls ? (long long)v.order : -1ll);
        if (!row || PyList_Append(found, row)) Py_CLEAR(found);
        Py_XDECREF(row);
    }
    return found;
}

#define FAST(name, function, text) {name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, text}
static PyMethodDef DISPATCH = FAST("__torch_dispatch__", dispatch, "Run an operation as it would have run, then note what came out.");

static PyObject *py_handler(PyObject *self, PyObject *mode) { return PyCFunction_NewEx(&DISPATCH, mode, NULL); }

/* ---- what Python asks, as of seen.py, nodes.py and book.py ------------------------------------------------------------ */

static PyObject *py_remember(PyObject *self, PyObject *const *argv, Py_ssize_t count)
{
    long long row = count == 2 ? PyLong_AsLongLong(argv[1]) : -1;
    if (count != 2 || PyErr_Occurred() || remember((Path *)self, argv[0], row)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_row(PyObject *self, PyObject *tensor)
{
    int64_t row = row_of((Path *)self, tensor);
    if (row < 0) Py_RETURN_NONE;
    return PyLong_FromLongLong(row);
}

static PyObject *py_forget(PyObject *self, PyObject *unused)
{
    seen_forget(((Path *)self)->own.seen);
    Py_RETURN_NONE;
}

static PyObject *py_begin(PyObject *self, PyObject *sequence)
{
    Path *p = (Path *)self;
    long long first = PyLong_AsLongLong(sequence);
    if (PyErr_Occurred()) return NULL;
    p->first_node = p->next_node = first;
    Py_RETURN_NONE;
}

static PyObject *py_node(PyObject *self, PyObject *number)
{
    PyObject *origin = node_origin((Path *)self, (int64_t)PyLong_AsUnsignedLongLongMask(number));
    return PyErr_Occurred() ? NULL : Py_NewRef(origin ? origin : Py_None);
}

static PyObject *py_made(PyObject *self, PyObject *const *argv, Py_ssize_t count)
{
    long long sequence = count == 2 ? PyLong_AsLongLong(argv[0]) : 0;
    if (count != 2 || PyErr_Occurred() || nodes_made((Path *)self, sequence, argv[1])) return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_take(PyObject *self, PyObject *const *argv, Py_ssize_t count)
{
    Tally t;
    long long number = count == 2 ? PyLong_AsLongLong(argv[0]) : 0;
    const int64_t *record = count == 2 ? (const int64_t *)PyLong_AsVoidPtr(argv[1]) : NULL;
    if (PyErr_Occurred()) return NULL;
    if (!record) return PyErr_Format(PyExc_TypeError, "expected a number and an address, got %zd values", count);
    memcpy(t.bins, record, sizeof t.bins);
    t.zeros = record[ZEROS], t.infs = record[INFS], t.nans = record[NANS], t.amax = (uint64_t)record[AMAX];
    memcpy(&t.sumsq, &record[SUMSQ], 8);
    int64_t row = ledger_take(&((Path *)self)->ledger, number, &t);
    return row < 0 ? NULL : PyLong_FromLongLong(row);
}

static PyObject *py_alias(PyObject *self, PyObject *const *argv, Py_ssize_t count)
{
    Ledger *l = &((Path *)self)->ledger;
    long long row = count == 2 ? PyLong_AsLongLong(argv[0]) : -1, number = count == 2 ? PyLong_AsLongLong(argv[1]) : 0;
    if (PyErr_Occurred()) return NULL;
    if (row < l->first_row || row >= l->first_row + l->held)
        return PyErr_Format(PyExc_ValueError, "expected a row from %lld on, got %lld", (long long)l->first_row, row);
    if (ledger_add(l, number, &l->rows[row - l->first_row])) return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_sums(PyObject *self, PyObject *sites)
{
    Ledger *l = &((Path *)self)->ledger;
    long long count = PyLong_AsLongLong(sites);
    if (PyErr_Occurred() || ledger_begin(l, count)) return NULL;
    return PyByteArray_FromStringAndSize((const char *)l->sums, (Py_ssize_t)count * RECORD_WORDS * 8);
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static Blocks spare_blocks;
enum { SPARE_ROOM = 1 << 13 };

static int blocks_start(Blocks *b)
{
    *b = spare_blocks;
    memset(&spare_blocks, 0, sizeof spare_blocks);
    if (!b->seen) b->seen = malloc(sizeof *b->seen);
    if (b->seen) seen_start(b->seen);
    else PyErr_NoMemory();
    return b->seen ? 0 : -1;
}

static void blocks_end(Blocks *b)
{
    Map *maps[] = {&b->plans, &b->kinds, &b->origins, &b->numbers, &b->indices, &b->doors};
    enum { MAPS = sizeof maps / sizeof *maps };
    for (int i = 0; i < MAPS; i++) map_clear(maps[i]);
    if (!spare_blocks.seen && b->plan_room + b->node_room + b->stack_room + b->visit_room <= SPARE_ROOM) {
        spare_blocks = *b;
    } else {
        for (int i = 0; i < MAPS; i++) free(maps[i]->slots);
        free(b->plan_list), free(b->nodes), free(b->stack), free(b->visits), free(b->seen);
    }
    memset(b, 0, sizeof *b);
}

static int clear(PyObject *self)
{
    Path *p = (Path *)self;
    for (int i = 0; i < CALLS_WANTED; i++) Py_CLEAR(p->calls[i]);
    Py_CLEAR(p->names);
    return 0;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    for (int i = 0; i < CALLS_WANTED; i++) Py_VISIT(((Path *)self)->calls[i]);
    Py_VISIT(((Path *)self)->names);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void dealloc(PyObject *self)
{
    Path *p = (Path *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    while (p->depth) left(p);
    for (int64_t i = 0; i < p->module_count; i++) Py_XDECREF(p->own.visits[i].path);
    clear(self);
    if (p->own.seen) seen_forget(p->own.seen);
    blocks_end(&p->own);
    ledger_end(&p->ledger);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *new_path(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *capsule, *calls;
    long long threads;
    if (!PyArg_ParseTuple(args, "OO!L", &capsule, &PyTuple_Type, &calls, &threads)) return NULL;
    const Exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!exchange) return NULL;
    if (exchange->major != 1 || !exchange->read || PyTuple_Size(calls) != CALLS_WANTED)
        return PyErr_Format(PyExc_ValueError, "expected DLPack 1 and %d callables, got DLPack %u and %zd", (int)CALLS_WANTED,
                            exchange->major, PyTuple_Size(calls));
    Path *p = PyObject_GC_New(Path, type);
    if (!p) return NULL;
    memset((char *)p + sizeof(PyObject), 0, sizeof *p - sizeof(PyObject));
    p->read = exchange->read;
    p->threads = threads;
    for (int i = 0; i < CALLS_WANTED; i++) p->calls[i] = Py_NewRef(PyTuple_GetItem(calls, i));
    p->names = PyDict_New();
    PyObject_GC_Track(p);
    if (ledger_start(&p->ledger) || blocks_start(&p->own) || !p->names) Py_CLEAR(p);
    return (PyObject *)p;
}

static PyObject *get_operations(PyObject *self, void *unused) { return PyLong_FromLongLong(((Path *)self)->operations); }
static PyObject *get_measured(PyObject *self, void *unused) { return PyLong_FromLongLong(((Path *)self)->ledger.measured); }
static PyObject *get_first_row(PyObject *self, void *unused) { return PyLong_FromLongLong(((Path *)self)->ledger.first_row); }
static PyObject *get_next(PyObject *self, void *unused) { return PyLong_FromLongLong(((Path *)self)->next_node); }

static PyMethodDef METHODS[] = {
    {"handler", py_handler, METH_O, "handler(mode): what handles the operations under a mode that holds this path."},
    FAST("remember", py_remember, "remember(tensor, row): as Seen does."),
    {"row", py_row, METH_O, "row(tensor): as Seen does."},
    {"forget", py_forget, METH_NOARGS, "forget(): as Seen does."},
    {"begin", py_begin, METH_O, "begin(sequence): as Nodes does."},
    {"get", py_node, METH_O, "get(number): as Nodes does."},
    FAST("made", py_made, "made(sequence, origin): as Nodes does."),
    FAST("take", py_take, "take(number, record_ptr): adds a record to a site; returns its row."),
    FAST("alias", py_alias, "alias(row, number): counts a row for a further site."),
    FAST("enter", py_enter, "enter(module, args): as ModuleTracker does."),
    FAST("leave", py_leave, "leave(module, args, output): as ModuleTracker does."),
    {"start", py_start, METH_O, "start(layers): begins to follow module calls in this thread, and to measure what they give."},
    FAST("gradient", py_gradient, "gradient(module, place, grad): measures the gradient of a module's result."),
    {"name", py_name, METH_O, "name(modules): knows modules by their place in this list, their paths, and how many arguments fill them."},
    {"visits", py_visits, METH_NOARGS, "visits(): calls, recomputations and order of each module."},
    {"sums", py_sums, METH_O, "sums(sites): the records of so many sites."},
    {NULL, NULL, 0, NULL},
};
static PyObject *get_foreign(PyObject *self, void *unused) { return PyLong_FromLongLong(((Path *)self)->foreign); }
static PyObject *get_names(PyObject *self, void *unused) { return Py_NewRef(((Path *)self)->names); }
static PyObject *get_current(PyObject *self, void *unused) { return PyLong_FromLongLong(((Path *)self)->current); }
static PyObject *get_recomputing(PyObject *self, void *unused) { return PyBool_FromLong(((Path *)self)->recomputing); }

#define NUMBER_OF(name) {#name, get_##name, NULL, NULL, NULL}
static PyGetSetDef GETTERS[] = {NUMBER_OF(operations), NUMBER_OF(measured), NUMBER_OF(first_row), NUMBER_OF(next), NUMBER_OF(foreign),
                                NUMBER_OF(current), NUMBER_OF(recomputing), NUMBER_OF(names), {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot SLOTS[] = {{Py_tp_new, new_path}, {Py_tp_dealloc, dealloc}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
                              {Py_tp_methods, METHODS}, {Py_tp_getset, GETTERS}, {0, NULL}};
static PyType_Spec SPEC = {"ampcheck.observe._exphist.Path", sizeof(Path), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, SLOTS};

int add_path_type(PyObject *module)
{
    F_BACK = PyUnicode_InternFromString("f_back"), F_LASTI = PyUnicode_InternFromString("f_lasti");
    VERSION = PyUnicode_InternFromString("_version"), SEQUENCE_NR = PyUnicode_InternFromString("_sequence_nr");
    F_LOCALS = PyUnicode_InternFromString("f_locals"), KWARGS = PyUnicode_InternFromString("kwargs");
    PATH = PyUnicode_InternFromString("path"), MODULE = PyUnicode_InternFromString("module");
    FILE_NAME = PyUnicode_InternFromString("file"), LINE = PyUnicode_InternFromString("line");
    INPUT_NAME = PyUnicode_InternFromString("input"), OUTPUT_NAME = PyUnicode_InternFromString("output");
    NOWHERE = PyUnicode_InternFromString(""), NO_LINE = PyLong_FromLong(0);
    STORAGE = PyUnicode_InternFromString("untyped_storage"), DATA_PTR = PyUnicode_InternFromString("data_ptr");
    NBYTES = PyUnicode_InternFromString("nbytes");
    PyObject *type = PyType_FromSpec(&SPEC);
    int failed = !type || PyModule_AddObjectRef(module, "Path", type);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}
