/* The loops over points and pairs of points that the clustering tools spend their time in.
 *
 * Plain C behind ctypes (see kernels.py): no Python headers, no global state, no threads of
 * its own; a caller splits work over threads by `chunk`. Points are double, n by d, row by
 * row unless said otherwise. A negative result means that memory ran out.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LEAF 16
#define TILE 256
#define INLINE static inline __attribute__((always_inline))

/* ------------------------------------------------------------------ k-d tree */

typedef struct {
    int64_t n, d, nodes;
    int32_t *order;    /* order[i]: the row of the i-th point in tree order */
    double *points;    /* the points in tree order */
    int64_t *low;      /* node i holds the points low[i] .. low[i + 1 of its level] */
    int64_t *high;
    double *box;       /* per node: d minima, then d maxima */
} Tree;

static void tree_free(Tree *t) {
    free(t->order), free(t->points), free(t->low), free(t->high), free(t->box);
}

/* Hoare's selection: afterwards no key before k is above, none after k is below key[k]. */
static void select_kth(int32_t *order, int64_t left, int64_t right, int64_t k,
                       const double *x, int64_t d, int64_t axis) {
#define KEY(i) x[(int64_t)order[i] * d + axis]
    uint64_t random = (uint64_t)k; /* no order of the points is a bad one for long */
    while (left < right) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        double pivot = KEY(left + (int64_t)((random >> 33) % (uint64_t)(right - left + 1)));
        int64_t i = left, j = right;
        while (i <= j) {
            while (KEY(i) < pivot) i++;
            while (KEY(j) > pivot) j--;
            if (i <= j) {
                int32_t swap = order[i];
                order[i++] = order[j], order[j--] = swap;
            }
        }
        if (k <= j) right = j;
        else if (k >= i) left = i;
        else return;
    }
#undef KEY
}

static void node_box(Tree *t, const double *x, int64_t node) {
    double *box = t->box + node * 2 * t->d;
    for (int64_t f = 0; f < t->d; f++) box[f] = INFINITY, box[t->d + f] = -INFINITY;
    for (int64_t i = t->low[node]; i < t->high[node]; i++) {
        const double *p = x + (int64_t)t->order[i] * t->d;
        for (int64_t f = 0; f < t->d; f++) {
            if (p[f] < box[f]) box[f] = p[f];
            if (p[f] > box[t->d + f]) box[t->d + f] = p[f];
        }
    }
}

static int tree_build(Tree *t, const double *x, int64_t n, int64_t d) {
    int64_t leaves = 1;
    while (n > LEAF * leaves) leaves *= 2;
    t->n = n, t->d = d, t->nodes = 2 * leaves - 1;
    t->order = malloc((size_t)n * sizeof *t->order);
    t->points = malloc((size_t)(n * d) * sizeof *t->points);
    t->low = malloc((size_t)t->nodes * sizeof *t->low);
    t->high = malloc((size_t)t->nodes * sizeof *t->high);
    t->box = malloc((size_t)(t->nodes * 2 * d) * sizeof *t->box);
    if (!t->order || !t->points || !t->low || !t->high || !t->box) return tree_free(t), -1;
    for (int64_t i = 0; i < n; i++) t->order[i] = (int32_t)i;
    t->low[0] = 0, t->high[0] = n;
    for (int64_t node = 0; node < t->nodes; node++) {
        node_box(t, x, node);
        if (node >= leaves - 1) continue;
        const double *box = t->box + node * 2 * d;
        int64_t axis = 0, low = t->low[node], high = t->high[node];
        for (int64_t f = 1; f < d; f++)
            if (box[d + f] - box[f] > box[d + axis] - box[axis]) axis = f;
        int64_t middle = low + (high - low) / 2;
        select_kth(t->order, low, high - 1, middle, x, d, axis);
        t->low[2 * node + 1] = low, t->high[2 * node + 1] = middle;
        t->low[2 * node + 2] = middle, t->high[2 * node + 2] = high;
    }
    for (int64_t i = 0; i < n; i++)
        memcpy(t->points + i * d, x + (int64_t)t->order[i] * d, (size_t)d * sizeof *x);
    return 0;
}

INLINE int is_leaf(const Tree *t, int64_t node) { return 2 * node + 1 >= t->nodes; }

INLINE double squared_distance(const double *p, const double *q, int64_t d) {
    double sum = 0;
    for (int64_t f = 0; f < d; f++) sum += (p[f] - q[f]) * (p[f] - q[f]);
    return sum;
}

/* The least squared distance from p to a node's box. */
INLINE double box_distance(const Tree *t, int64_t node, const double *p) {
    const double *box = t->box + node * 2 * t->d;
    double sum = 0;
    for (int64_t f = 0; f < t->d; f++) {
        double below = box[f] - p[f], above = p[f] - box[t->d + f];
        double out = below > above ? below : above;
        if (out > 0) sum += out * out;
    }
    return sum;
}

/* The greatest squared distance from p to a node's box. */
INLINE double box_reach(const Tree *t, int64_t node, const double *p) {
    const double *box = t->box + node * 2 * t->d;
    double sum = 0;
    for (int64_t f = 0; f < t->d; f++) {
        double a = fabs(p[f] - box[f]), b = fabs(p[f] - box[t->d + f]);
        sum += a > b ? a * a : b * b;
    }
    return sum;
}

/* The nearest point to p at a squared distance below *best (or equal, with `inclusive`)
 * whose component differs from `own` (any point where `component` is NULL): its place in
 * tree order, or -1. `uniform[node]` is the component of all of a node's points, or -1. */
static int64_t nearest(const Tree *t, const double *p, const int32_t *component,
                       const int32_t *uniform, int32_t own, int inclusive, double *best) {
    struct { int64_t node; double distance; } stack[128];
    int64_t top = 0, found = -1;
    stack[top].node = 0, stack[top++].distance = box_distance(t, 0, p);
    while (top) {
        int64_t node = stack[--top].node;
        double distance = stack[top].distance;
        if (distance > *best || (distance == *best && (found >= 0 || !inclusive))) continue;
        if (uniform && uniform[node] == own) continue;
        if (!is_leaf(t, node)) {
            double left = box_distance(t, 2 * node + 1, p);
            double right = box_distance(t, 2 * node + 2, p);
            int64_t near = left <= right ? 2 * node + 1 : 2 * node + 2;
            int64_t far = left <= right ? 2 * node + 2 : 2 * node + 1;
            stack[top].node = far, stack[top++].distance = left <= right ? right : left;
            stack[top].node = near, stack[top++].distance = left <= right ? left : right;
            continue;
        }
        for (int64_t i = t->low[node]; i < t->high[node]; i++) {
            if (component && component[i] == own) continue;
            double d2 = squared_distance(p, t->points + i * t->d, t->d);
            if (d2 < *best || (inclusive && found < 0 && d2 == *best))
                *best = d2, found = i;
        }
    }
    return found;
}

/* The rows in the order of a k-d tree's leaves: near in the order is near in space. */
int64_t sfq_spatial_order(const double *x, int64_t n, int64_t d, int32_t *order) {
    Tree t;
    if (tree_build(&t, x, n, d)) return -1;
    memcpy(order, t.order, (size_t)n * sizeof *order);
    tree_free(&t);
    return 0;
}

/* core[i] = 1 where at least `least` points (itself among them) lie within `radius`. */
int64_t sfq_core_points(const double *x, int64_t n, int64_t d, double radius,
                        int64_t least, uint8_t *core) {
    Tree t;
    double r2 = radius * radius;
    if (tree_build(&t, x, n, d)) return -1;
    for (int64_t i = 0; i < n; i++) {
        const double *p = t.points + i * d;
        int64_t stack[128], top = 0, count = 0;
        stack[top++] = 0;
        while (top && count < least) {
            int64_t node = stack[--top];
            if (box_distance(&t, node, p) > r2) continue;
            if (box_reach(&t, node, p) <= r2) count += t.high[node] - t.low[node];
            else if (is_leaf(&t, node)) {
                for (int64_t j = t.low[node]; j < t.high[node]; j++)
                    count += squared_distance(p, t.points + j * d, d) <= r2;
            } else stack[top++] = 2 * node + 1, stack[top++] = 2 * node + 2;
        }
        core[t.order[i]] = count >= least;
    }
    tree_free(&t);
    return 0;
}

/* result[i]: the row of x nearest to query i within `radius`, or -1. */
int64_t sfq_nearest(const double *x, int64_t n, int64_t d, const double *queries,
                    int64_t m, double radius, int32_t *result) {
    Tree t;
    if (tree_build(&t, x, n, d)) return -1;
    for (int64_t i = 0; i < m; i++) {
        double best = radius * radius;
        int64_t found = nearest(&t, queries + i * d, NULL, NULL, -1, 1, &best);
        result[i] = found < 0 ? -1 : t.order[found];
    }
    tree_free(&t);
    return 0;
}

/* ------------------------------------------- Euclidean minimum spanning forest */

static int32_t find_root(int32_t *parent, int32_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
}

static void mark_uniform(const Tree *t, const int32_t *component, int32_t *uniform) {
    for (int64_t node = t->nodes - 1; node >= 0; node--) {
        if (is_leaf(t, node)) {
            int64_t i = t->low[node];
            int32_t first = i < t->high[node] ? component[i] : -1;
            while (i < t->high[node] && component[i] == first) i++;
            uniform[node] = i < t->high[node] ? -1 : first;
        } else
            uniform[node] = uniform[2 * node + 1] == uniform[2 * node + 2]
                                ? uniform[2 * node + 1] : -1;
    }
}

/* Boruvka's algorithm on a k-d tree (March, Ram and Gray, KDD 2010, without the second
 * tree): edges of the minimum spanning forest no longer than `longest`, as pairs of rows
 * with their lengths. Returns how many. A point's last answer bounds its next one from
 * below, because components only grow; ties are settled by the union-find. */
int64_t sfq_spanning_forest(const double *x, int64_t n, int64_t d, double longest,
                            int32_t *edges, double *lengths) {
    Tree t;
    int64_t count = 0, added;
    if (tree_build(&t, x, n, d)) return -1;
    size_t ints = (size_t)n * sizeof(int32_t), doubles = (size_t)n * sizeof(double);
    int32_t *parent = malloc(ints), *component = malloc(ints), *near = malloc(ints);
    int32_t *from = malloc(ints), *uniform = malloc((size_t)t.nodes * sizeof *uniform);
    double *bound = malloc(doubles), *best = malloc(doubles);
    if (!parent || !component || !near || !from || !uniform || !bound || !best) {
        count = -1;
        goto done;
    }
    for (int64_t i = 0; i < n; i++) parent[i] = (int32_t)i, near[i] = -1, bound[i] = 0;
    do {
        added = 0;
        for (int64_t i = 0; i < n; i++) {
            component[i] = find_root(parent, (int32_t)i);
            best[i] = longest * longest, from[i] = -1;
        }
        mark_uniform(&t, component, uniform);
        for (int64_t i = 0; i < n; i++) { /* what the last round left still holds */
            int32_t own = component[i];
            if (near[i] >= 0 && component[near[i]] == own) near[i] = -1;
            else if (near[i] >= 0 && (bound[i] < best[own] || from[own] < 0))
                best[own] = bound[i], from[own] = (int32_t)i;
        }
        for (int64_t i = 0; i < n; i++) {
            int32_t own = component[i];
            int inclusive = from[own] < 0;
            if (near[i] >= 0 || bound[i] > best[own] || (bound[i] == best[own] && !inclusive))
                continue;
            double distance = best[own];
            int64_t other = nearest(&t, t.points + i * d, component, uniform, own,
                                    inclusive, &distance);
            bound[i] = distance;
            if (other < 0) continue;
            near[i] = (int32_t)other, best[own] = distance, from[own] = (int32_t)i;
        }
        for (int64_t c = 0; c < n; c++) {
            if (component[c] != c || from[c] < 0) continue;
            int32_t a = from[c], b = near[a];
            int32_t root_a = find_root(parent, a), root_b = find_root(parent, b);
            if (root_a == root_b) continue;
            parent[root_a] = root_b;
            edges[2 * count] = t.order[a], edges[2 * count + 1] = t.order[b];
            lengths[count++] = sqrt(bound[a]);
            added++;
        }
    } while (added);
done:
    free(parent), free(component), free(near), free(from), free(uniform);
    free(bound), free(best), tree_free(&t);
    return count;
}

/* ------------------------------------------------------------------ k-means */

/* One of Lloyd's steps: assigns each point to its nearest centre (the first of equals),
 * sums the points of each cluster; returns how many assignments changed. */
int64_t sfq_kmeans_step(const double *x, int64_t n, int64_t d, const double *centres,
                        int64_t k, int32_t *labels, double *sums, int64_t *sizes) {
    int64_t changed = 0;
    memset(sums, 0, (size_t)(k * d) * sizeof *sums);
    memset(sizes, 0, (size_t)k * sizeof *sizes);
    for (int64_t i = 0; i < n; i++) {
        const double *p = x + i * d;
        double least = INFINITY;
        int32_t label = 0;
        for (int64_t c = 0; c < k; c++) {
            double d2 = squared_distance(p, centres + c * d, d);
            if (d2 < least) least = d2, label = (int32_t)c;
        }
        changed += labels[i] != label;
        labels[i] = label;
        sizes[label]++;
        for (int64_t f = 0; f < d; f++) sums[label * d + f] += p[f];
    }
    return changed;
}

/* ------------------------------------------------------- sums of distances */

/* Returns the sum of |p - column| over a run of columns, and adds each to its column's sum.
 * `x` holds the columns feature by feature, `stride` apart. */
INLINE double distances_from(const double *p, const double *x, int64_t stride,
                             int64_t columns, int64_t d, double *column_sums) {
    double sum = 0, squares[TILE];
    if (d <= 3) { /* the compiler unrolls these: d is a constant where this is inlined */
        _Pragma("omp simd reduction(+ : sum)")
        for (int64_t j = 0; j < columns; j++) {
            double s = 0;
            for (int64_t f = 0; f < d; f++) {
                double difference = x[f * stride + j] - p[f];
                s += difference * difference;
            }
            s = sqrt(s);
            column_sums[j] += s;
            sum += s;
        }
        return sum;
    }
    memset(squares, 0, (size_t)columns * sizeof *squares);
    for (int64_t f = 0; f < d; f++)
        for (int64_t j = 0; j < columns; j++) {
            double difference = x[f * stride + j] - p[f];
            squares[j] += difference * difference;
        }
    _Pragma("omp simd reduction(+ : sum)")
    for (int64_t j = 0; j < columns; j++) {
        double s = sqrt(squares[j]);
        column_sums[j] += s;
        sum += s;
    }
    return sum;
}

/* Adds the distances between n rows and a run of columns to the rows' sums, which are `apart`
 * from each other, and to the columns' sums. */
typedef void Distances(const double *rows, int64_t n, const double *x, int64_t stride,
                       int64_t columns, int64_t d, double *row_sums, int64_t apart,
                       double *column_sums);

#define DISTANCES(name, attributes)                                                       \
    attributes static void name(const double *rows, int64_t n, const double *x,           \
                                int64_t stride, int64_t columns, int64_t d,               \
                                double *row_sums, int64_t apart, double *column_sums) {   \
        for (int64_t i = 0; i < n; i++) {                                                 \
            const double *p = rows + i * d;                                               \
            double *sum = row_sums + i * apart;                                           \
            switch (d) {                                                                  \
            case 1: *sum += distances_from(p, x, stride, columns, 1, column_sums); break; \
            case 2: *sum += distances_from(p, x, stride, columns, 2, column_sums); break; \
            case 3: *sum += distances_from(p, x, stride, columns, 3, column_sums); break; \
            default: *sum += distances_from(p, x, stride, columns, d, column_sums);       \
            }                                                                             \
        }                                                                                 \
    }

DISTANCES(distances_anywhere, )
#if defined(__x86_64__)
/* One wheel serves every x86-64: the processor's own vector width is chosen when it runs.
 * By hand, because ifuncs and __builtin_cpu_supports ask for a run-time library that not
 * every compiler links into a shared object. Intel SDM volume 1, sections 14.3 and 15.2. */
#include <cpuid.h>

#include <immintrin.h>

DISTANCES(distances_avx2, __attribute__((target("avx2"))))

#define AVX512 __attribute__((target("avx512f")))

/* Square roots, faster than by VSQRTPD. The processor's estimate r of 1 / sqrt(s) is good to
 * 2^-14; with e = 1 - s r^2, sqrt(s) = s r / sqrt(1 - e), whose series up to e^3 is good to
 * the last bit but one. No s is infinite: points.py refuses coordinates above 1e150. */
AVX512 INLINE __m512d square_roots(__m512d s) {
    __mmask8 positive = _mm512_cmp_pd_mask(s, _mm512_setzero_pd(), _CMP_GT_OQ);
    __m512d r = _mm512_maskz_rsqrt14_pd(positive, s), root = _mm512_mul_pd(s, r);
    __m512d e = _mm512_fnmadd_pd(root, r, _mm512_set1_pd(1));
    __m512d series = _mm512_fmadd_pd(e, _mm512_set1_pd(5.0 / 16), _mm512_set1_pd(3.0 / 8));
    series = _mm512_fmadd_pd(e, series, _mm512_set1_pd(1.0 / 2));
    return _mm512_fmadd_pd(_mm512_mul_pd(root, e), series, root);
}

/* Adds the distances between `count` rows and eight columns, or those of them in `there`. */
AVX512 INLINE void eight_distances(const double *rows, int64_t count, const double *x,
                                   int64_t stride, __mmask8 there, int64_t d,
                                   __m512d *row_sums, double *column_sums) {
    __m512d sums = _mm512_maskz_loadu_pd(there, column_sums);
    for (int64_t i = 0; i < count; i++) {
        __m512d squares = _mm512_setzero_pd();
        for (int64_t f = 0; f < d; f++) {
            __m512d column = _mm512_maskz_loadu_pd(there, x + f * stride);
            __m512d feature = _mm512_set1_pd(rows[i * d + f]);
            __m512d difference = _mm512_maskz_sub_pd(there, column, feature);
            squares = _mm512_fmadd_pd(difference, difference, squares);
        }
        __m512d distances = square_roots(squares);
        row_sums[i] = _mm512_add_pd(row_sums[i], distances);
        sums = _mm512_add_pd(sums, distances);
    }
    _mm512_mask_storeu_pd(column_sums, there, sums);
}

AVX512 INLINE void distances_in_eights(const double *rows, int64_t count, const double *x,
                                       int64_t stride, int64_t columns, int64_t d,
                                       double *row_sums, int64_t apart,
                                       double *column_sums) {
    __m512d sums[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    int64_t j = 0;
    for (; j + 8 <= columns; j += 8) /* the compiler drops a mask of all */
        eight_distances(rows, count, x + j, stride, 0xff, d, sums, column_sums + j);
    if (j < columns) {
        __mmask8 there = (__mmask8)((1 << (columns - j)) - 1);
        eight_distances(rows, count, x + j, stride, there, d, sums, column_sums + j);
    }
    for (int64_t i = 0; i < count; i++)
        row_sums[i * apart] += _mm512_reduce_add_pd(sums[i]);
}

/* The compiler unrolls two rows, so that neither waits for its own last sum. */
AVX512 INLINE void distances_of_pairs(const double *rows, int64_t n, const double *x,
                                      int64_t stride, int64_t columns, int64_t d,
                                      double *row_sums, int64_t apart,
                                      double *column_sums) {
    int64_t i = 0;
    for (; i + 2 <= n; i += 2)
        distances_in_eights(rows + i * d, 2, x, stride, columns, d, row_sums + i * apart,
                            apart, column_sums);
    if (i < n)
        distances_in_eights(rows + i * d, 1, x, stride, columns, d, row_sums + i * apart,
                            apart, column_sums);
}

AVX512 static void distances_avx512(const double *rows, int64_t n, const double *x,
                                    int64_t stride, int64_t columns, int64_t d,
                                    double *row_sums, int64_t apart, double *column_sums) {
    /* the compiler unrolls the loop over two features */
    if (d == 2)
        distances_of_pairs(rows, n, x, stride, columns, 2, row_sums, apart, column_sums);
    else
        distances_of_pairs(rows, n, x, stride, columns, d, row_sums, apart, column_sums);
}

static Distances *best_distances(void) {
    unsigned a, b, c, d, state, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return distances_anywhere;
    __asm__("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return distances_anywhere;
    if ((b & bit_AVX512F) && (state & 0xe6) == 0xe6) return distances_avx512;
    if ((b & bit_AVX2) && (state & 0x6) == 0x6) return distances_avx2;
    return distances_anywhere;
}
#else
static Distances *best_distances(void) { return distances_anywhere; }
#endif

/* sums[i][g] += the distances from point i to every point of group g, wherever
 * need[tile of i][g]. Points come as x (feature by feature) and as rows, sorted so that a
 * tile (starts[t] .. starts[t + 1], at most TILE points) lies in one group. Each pair of
 * tiles is computed once and serves both. Chunk c of `chunks` takes every chunks-th tile
 * and needs sums of its own. */
int64_t sfq_pair_sums(const double *rows, const double *x, int64_t n, int64_t d,
                      int64_t tiles, const int64_t *starts, const int32_t *group,
                      int64_t groups, const uint8_t *need, int64_t chunk, int64_t chunks,
                      double *sums) {
    double column_sums[TILE], ignored[TILE] = {0};
    Distances *distances = best_distances();
    for (int64_t a = chunk; a < tiles; a += chunks)
        for (int64_t b = a; b < tiles; b++) {
            int forward = need[a * groups + group[b]];
            int backward = a != b && need[b * groups + group[a]];
            if (!forward && !backward) continue;
            int64_t columns = starts[b + 1] - starts[b];
            memset(column_sums, 0, sizeof column_sums);
            distances(rows + starts[a] * d, starts[a + 1] - starts[a], x + starts[b], n,
                      columns, d, forward ? &sums[starts[a] * groups + group[b]] : ignored,
                      forward ? groups : 1, column_sums);
            if (backward)
                for (int64_t j = 0; j < columns; j++)
                    sums[(starts[b] + j) * groups + group[a]] += column_sums[j];
        }
    return 0;
}

/* sums[i][g] = the distances from query i to every point of group g; groups are runs
 * offsets[g] .. offsets[g + 1] of the points x (feature by feature). */
int64_t sfq_group_sums(const double *queries, int64_t m, const double *x, int64_t n,
                       int64_t d, const int64_t *offsets, int64_t groups, double *sums) {
    double ignored[TILE];
    Distances *distances = best_distances();
    for (int64_t g = 0; g < groups; g++)
        for (int64_t start = offsets[g]; start < offsets[g + 1]; start += TILE) {
            int64_t left = offsets[g + 1] - start;
            memset(ignored, 0, sizeof ignored);
            distances(queries, m, x + start, n, left < TILE ? left : TILE, d, sums + g, groups,
                      ignored);
        }
    return 0;
}
