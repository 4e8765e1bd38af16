/* The statistics of a block of elements, on any machine.
 *
 * Every float is looked at as the fp32 bits of |x| (float64 as its own) and classified with integers only. A block's
 * exponents go to bytes in the first-level cache; then each exponent that the block spans is compared with all of them,
 * which needs no store per element. Blocks with non-finite, subnormal or extreme elements are read a second time. */
#include "_exphist.h"

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static __forceinline
#endif

#define INF32 0x7f800000u
#define INF64 0x7ff0000000000000ull
#define ABS32 0x7fffffffu
#define ABS64 0x7fffffffffffffffull
#define LEAST_NORMAL 0x800000u
#define SMALL (69u << 23)  /* 2^-58: below it, squares lost to fp32's underflow could be 1e-6 of a block's sum */
#define LARGE (187u << 23) /* 2^60: from there on, four squares could overflow fp32 */

#define BLOCK 4096            /* elements; with their bytes and the counters they fit the first-level cache */
#define STEP 64               /* elements converted at a time; a shorter tail is padded with zeros */
#define LANES 4               /* sub-histograms: equal neighbours do not wait for each other's store */
#define GROUP 8               /* exponents compared in one pass over the bytes */
#define MAX_SPAN 48           /* exponents in a block from which one pass of look-ups is cheaper than comparing */
#define FEW 12                /* elements for which look-ups, mispredicted, are cheaper than another group */

typedef struct {
    uint32_t amax, least;      /* bits of the largest finite |x|; of the smallest non-zero |x|, less one */
    int64_t zeros, infs, nans; /* by a careful pass only, whose non-finite elements become zero bytes */
    double sumsq;
} Block;

typedef struct {
    void (*convert)(const void *data, int64_t n, int dtype, int careful, uint8_t *bytes, Block *block);
    void (*group)(const uint8_t *bytes, int64_t n, const uint8_t *exponents, int64_t *counts); /* NULL: look-ups only */
    void (*rest)(const uint8_t *bytes, int64_t n, int top, int64_t *bins);                     /* counts bytes 1..top */
} Vectors;

typedef void (*Kernel)(const void *data, int64_t n, int dtype, Tally *tally);

static const int WIDTH[DTYPES] = {4, 8, 2, 2, 1, 1};

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static float as_float(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
static uint32_t bits_of(float f) { uint32_t b; memcpy(&b, &f, 4); return b; }
static uint64_t wide_bits_of(double d) { uint64_t b; memcpy(&b, &d, 8); return b; }

/* |x| as fp32 bits, without branches and without arithmetic on a subnormal float, which is slow. */
INLINE uint32_t widen_half(uint32_t code)
{
    uint32_t a = code & 0x7fffu, normal = (a << 13) + (112u << 23), subnormal = bits_of((float)(int32_t)a * 0x1p-24f);
    uint32_t is_subnormal = 0u - (a < 0x400u), is_special = 0u - (a >= 0x7c00u);
    return (subnormal & is_subnormal) | (normal & ~is_subnormal) | (INF32 & is_special);
}

static uint32_t widen_byte(uint32_t code, int dtype)
{
    if (dtype == E5M2) return widen_half(code << 8);
    if ((code & 0x7f) == 0x7f) return INF32 | 1u; /* e4m3fn has no infinity and one nan */
    return bits_of(as_float((code & 0x7f) << 20) * 0x1p120f); /* moves the bias; exact, subnormals too */
}

INLINE uint32_t load(const void *data, int64_t i, int dtype)
{
    uint32_t word;
    uint16_t half;
    if (WIDTH[dtype] == 1) return widen_byte(((const uint8_t *)data)[i], dtype);
    if (dtype == F32) { memcpy(&word, (const char *)data + 4 * i, 4); return word & ABS32; }
    memcpy(&half, (const char *)data + 2 * i, 2);
    return dtype == BF16 ? (uint32_t)(half & 0x7fffu) << 16 : widen_half(half);
}

static uint64_t to_double(uint32_t a) { return wide_bits_of((double)as_float(a)); }

/* ---- a block's bytes --------------------------------------------------------------------------------------------- */

/* Adds bytes 1..255 to the bins one by one; returns the zero bytes. */
static int64_t count_wide(const uint8_t *bytes, int64_t n, int64_t *bins)
{
    uint32_t sub[LANES][256];
    memset(sub, 0, sizeof sub);
    for (int64_t i = 0; i < n; i += 8) {
        uint64_t eight;
        memcpy(&eight, bytes + i, 8);
        for (int j = 0; j < 8; j++) sub[j % LANES][(uint8_t)(eight >> 8 * j)]++;
    }
    for (int b = 1; b < 256; b++) bins[b] += (int64_t)sub[0][b] + sub[1][b] + sub[2][b] + sub[3][b];
    return (int64_t)sub[0][0] + sub[1][0] + sub[2][0] + sub[3][0];
}

/* The same for bytes that are 0 or in lo..hi, from the top, where most elements are. */
INLINE int64_t count_bytes(const uint8_t *bytes, int64_t n, int lo, int hi, int64_t *bins, const Vectors v)
{
    uint8_t exponents[GROUP] = {0};
    int64_t counts[GROUP], zero_bytes = 0, left = n;
    if (!v.group || hi - lo >= MAX_SPAN) return count_wide(bytes, n, bins);
    for (int slot = 1; slot || (hi >= lo && left > FEW); slot = 0) {
        int first = hi, zero = slot;
        for (; slot < GROUP; slot++) exponents[slot] = hi >= lo ? (uint8_t)hi-- : 255; /* 255: no such byte */
        v.group(bytes, n, exponents, counts);
        if (zero) left -= zero_bytes = counts[0];
        for (int b = first; b > hi; b--) {
            left -= counts[zero + first - b];
            bins[b] += counts[zero + first - b];
        }
    }
    if (left) v.rest(bytes, n, hi, bins);
    return zero_bytes;
}

INLINE void add_block(const void *data, int64_t n, int dtype, Tally *t, const Vectors v)
{
    uint8_t bytes[BLOCK];
    Block block = {0};
    v.convert(data, n, dtype, 0, bytes, &block);
    int careful = block.least < LEAST_NORMAL - 1 || (block.amax && (block.amax < SMALL || block.amax >= LARGE));
    if (careful) {
        memset(&block, 0, sizeof block);
        v.convert(data, n, dtype, 1, bytes, &block);
    }
    int lo = (int)((block.least + 1) >> 23), hi = (int)(block.amax >> 23);
    if (!block.amax) lo = 1, hi = 0;
    int64_t zero_bytes = count_bytes(bytes, n, lo ? lo : 1, hi, t->bins, v);
    int64_t zeros = careful ? block.zeros : zero_bytes;
    t->bins[0] += zero_bytes - zeros - block.infs - block.nans;
    t->zeros += zeros;
    t->infs += block.infs;
    t->nans += block.nans;
    t->sumsq += block.sumsq;
    if (to_double(block.amax) > t->amax) t->amax = to_double(block.amax);
}

INLINE void add_blocks(const char *data, int64_t n, int dtype, Tally *t, const Vectors v)
{
    uint32_t padded[STEP] = {0};
    int64_t whole = n & ~(int64_t)(STEP - 1);
    for (int64_t i = 0; i < whole; i += BLOCK)
        add_block(data + i * WIDTH[dtype], whole - i < BLOCK ? whole - i : BLOCK, dtype, t, v);
    if (n == whole) return;
    memcpy(padded, data + whole * WIDTH[dtype], (size_t)((n - whole) * WIDTH[dtype]));
    add_block(padded, STEP, dtype, t, v);
    t->zeros -= STEP - (n - whole);
}

/* ---- any machine ------------------------------------------------------------------------------------------------- */

/* A function with a copy of `body` for each type and care. */
#define COPIES(prefix, name, body)                                                                              \
    prefix void name(const void *data, int64_t n, int dtype, int careful, uint8_t *bytes, Block *block)         \
    {                                                                                                           \
        if (careful && dtype == F32) body(data, n, F32, 1, bytes, block);                                       \
        else if (careful && dtype == F16) body(data, n, F16, 1, bytes, block);                                  \
        else if (careful) body(data, n, BF16, 1, bytes, block);                                                 \
        else if (dtype == F32) body(data, n, F32, 0, bytes, block);                                             \
        else if (dtype == F16) body(data, n, F16, 0, bytes, block);                                             \
        else body(data, n, BF16, 0, bytes, block);                                                              \
    }

static void add_doubles(const void *data, int64_t n, Tally *t)
{
    double sums[LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        uint64_t a;
        memcpy(&a, (const char *)data + 8 * i, 8);
        a &= ABS64;
        int64_t b = (int64_t)(a >> 52) - 896; /* from bias 1023 to bias 127 */
        t->zeros += a == 0;
        if (a < INF64) {
            double d = as_double(a);
            t->bins[b < 0 ? 0 : b > 255 ? 255 : b] += a != 0;
            sums[i % LANES] += d * d;
            if (a > t->amax) t->amax = a;
        } else {
            t->infs += a == INF64;
            t->nans += a > INF64;
        }
    }
    t->sumsq += (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* There are few codes: count the codes, then look at each one once. */
static void add_bytes(const uint8_t *data, int64_t n, int dtype, Tally *t)
{
    int64_t counts[256] = {0}, done;
    for (int64_t i = 0; i < n; i += done) {
        done = n - i < BLOCK ? n - i : BLOCK;
        int64_t words = done & ~(int64_t)7;
        counts[0] += count_wide(data + i, words, counts);
        for (int64_t j = words; j < done; j++) counts[data[i + j]]++;
    }
    for (uint32_t code = 0; code < 256; code++) {
        uint32_t a = widen_byte(code, dtype);
        if (a == 0) t->zeros += counts[code];
        else if (a == INF32) t->infs += counts[code];
        else if (a > INF32) t->nans += counts[code];
        else t->bins[a >> 23] += counts[code];
        if (a >= INF32 || counts[code] == 0) continue;
        double d = as_float(a);
        t->sumsq += (double)counts[code] * (d * d);
        if (to_double(a) > t->amax) t->amax = to_double(a);
    }
}

INLINE void convert(const void *data, int64_t n, int dtype, int careful, uint8_t *bytes, Block *block)
{
    double sums[LANES] = {0};
    uint32_t amax = 0, least = UINT32_MAX;
    for (int64_t i = 0; i < n; i++) {
        uint32_t a = load(data, i, dtype);
        if (careful) {
            block->zeros += a == 0;
            block->infs += a == INF32;
            block->nans += a > INF32;
            a &= 0u - (a < INF32);
        }
        amax = a > amax ? a : amax;
        least = a - 1 < least ? a - 1 : least;
        bytes[i] = (uint8_t)(a >> 23);
        sums[i % LANES] += (double)as_float(a) * (double)as_float(a);
    }
    block->amax = amax;
    block->least = least;
    block->sumsq = (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

COPIES(static, convert_any, convert)

static void scalar(const void *data, int64_t n, int dtype, Tally *t)
{
    if (dtype == F64) add_doubles(data, n, t);
    else if (WIDTH[dtype] == 1) add_bytes(data, n, dtype, t);
    else add_blocks(data, n, dtype, t, (Vectors){convert_any, NULL, NULL});
}
