// Batches of tiny products: bound by reading A and B and writing D once.
//
// Idea:   a product is too small for a block of its own, so a block computes several. All reads of a block are in
//         flight before the first is waited for. Neighbouring threads read neighbouring float4s across the products.
//         One barrier separates the reads from the sums, which stay in registers. Both operands lie row by row in
//         shared memory, whatever their layout. A is read from there along k, four steps at once, B along n.
// Bound:  memory, up to 32 x 32; then the FFMA pipe.
// Reads:  any strides, 16 bytes at a time if alignment allows.
#pragma once
#include "../gpu/dependent_launch.cuh"
#include "../epilogue/epilogue.cuh"
#include "../gpu/launch.h"
#include "../problem/views.h"
#include "tiny.h"

namespace sgemm::SGEMM_BACKEND {

struct Tiny {
  static constexpr const char* kIdea = "many tiny products per block, every element read once and at once";
  static constexpr const char* kSource = "ieee/tiny.cuh";
  static constexpr ieee::TinyClass kLargest = ieee::kTinyClasses[ieee::kTinyCount - 1];
  static constexpr int BM = kLargest.size, BN = BM, BK = BM, TM = kLargest.tm, TN = kLargest.tn;
  static constexpr int kThreads = kLargest.threads(), kMaxSize = kLargest.size;
  static constexpr bool kActivates = false;
  static constexpr Reads kReads = Reads::kAnyStrides;
  static double error_bound(int64_t k) { return static_cast<double>(k); }  // units of 2^-24 |A||B|: a chain of k FMAs
  static constexpr auto plan = ieee::tiny_plan;
  static constexpr auto each_plan = ieee::each_tiny_plan;
  static constexpr auto cut = ieee::tiny_cut;
  static void launch(const Problem& p, const Plan& plan, const Context& context);
};

struct TinyJob {
  Problem p;
  ieee::TinyRead a, b;
  bool c_quads, d_quads;
};

template <int CLASS>
struct TinyTile {
  static constexpr ieee::TinyClass kClass = ieee::kTinyClasses[CLASS];
  static constexpr int S = kClass.size, TM = kClass.tm, TN = kClass.tn, kProducts = kClass.products;
  static constexpr int X = S / TN, Y = S / TM;  // threads along n and m
  static constexpr int kThreads = kClass.threads();
  // Rows, and the products of a warp, begin in different banks.
  static constexpr int kPitch = S == 4 ? 4 : S + 4, kPlane = S * kPitch + S;
  static constexpr int kQuads = S * S / 4;  // quads of a product's operand
  static constexpr int kCopies = kQuads * kProducts / kThreads;
  static_assert(TN % 4 == 0, "a thread's columns are quads");
  static_assert(kQuads % kThreads == 0 || kThreads % kQuads == 0, "copies are whole products or whole parts of one");

  // The quad that a thread copies: number `quad` of a line, which is a row or, with BY_COLS, a column. Each field is a
  // bit field of the index, so the place of a sum of indices is the sum of their places.
  struct Place {
    int product, line, quad;
  };
  template <bool BY_COLS>
  __device__ static constexpr Place place(int index) {
    const int within = index % kQuads;
    // Columns are transposed as they are stored: 16 columns with 2 quads each fall into different banks.
    constexpr int kWide = !BY_COLS ? S / 4 : S == 4 ? 1 : 2;
    return {index / kQuads, within / kWide % S, within % kWide + within / (kWide * S) * kWide};
  }
};

// Loads a block's part of an operand into registers: `rows` x `cols` of each of `products` products, with zeros
// outside.
template <class T, bool BY_COLS>
__device__ __forceinline__ void tiny_fetch(float4 (&quads)[T::kCopies], const ConstMatrix& x, int products, int rows,
                                           int cols, bool vector) {
  const int lines = BY_COLS ? cols : rows, length = BY_COLS ? rows : cols;
  const int64_t across = BY_COLS ? x.col : x.row, along = BY_COLS ? x.row : x.col;
  const auto first = T::template place<BY_COLS>(threadIdx.x);
  const float* const from = x.data + first.product * x.batch.stride + first.line * across + 4 * first.quad * along;
  if (vector) {
#pragma unroll
    for (int i = 0; i < T::kCopies; ++i) {
      const auto step = T::template place<BY_COLS>(i * T::kThreads);
      const float* at = from + step.product * x.batch.stride + step.line * across + 4 * step.quad;
      const bool inside = first.product + step.product < products && first.line + step.line < lines &&
                          4 * (first.quad + step.quad) < length;
      quads[i] = inside ? *reinterpret_cast<const float4*>(at) : make_float4(0, 0, 0, 0);
    }
  } else {
#pragma unroll
    for (int i = 0; i < T::kCopies; ++i) {
      const auto step = T::template place<BY_COLS>(i * T::kThreads);
      const float* at = from + step.product * x.batch.stride + step.line * across + 4 * step.quad * along;
      const bool inside = first.product + step.product < products && first.line + step.line < lines;
      const int left = inside ? length - 4 * (first.quad + step.quad) : 0;
      quads[i].x = left > 0 ? *at : 0.0f;
      quads[i].y = left > 1 ? at[along] : 0.0f;
      quads[i].z = left > 2 ? at[2 * along] : 0.0f;
      quads[i].w = left > 3 ? at[3 * along] : 0.0f;
    }
  }
}

// Stores these registers to shared memory, row by row.
template <class T, bool BY_COLS>
__device__ __forceinline__ void tiny_deposit(float* to, const float4 (&quads)[T::kCopies]) {
  const auto first = T::template place<BY_COLS>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < T::kCopies; ++i) {
    const auto step = T::template place<BY_COLS>(i * T::kThreads);
    const int line = first.line + step.line, quad = first.quad + step.quad;
    float* plane = to + (first.product + step.product) * T::kPlane;
    if (BY_COLS) {
      float* at = plane + 4 * quad * T::kPitch + line;
      at[0] = quads[i].x;
      at[T::kPitch] = quads[i].y;
      at[2 * T::kPitch] = quads[i].z;
      at[3 * T::kPitch] = quads[i].w;
    } else {
      *reinterpret_cast<float4*>(plane + line * T::kPitch + 4 * quad) = quads[i];
    }
  }
}

__device__ __forceinline__ float4 quad_at(const float* x) { return *reinterpret_cast<const float4*>(x); }

template <int CLASS>
__global__ void __launch_bounds__(TinyTile<CLASS>::kThreads, TinyTile<CLASS>::kClass.resident) tiny(TinyJob job) {
  using T = TinyTile<CLASS>;
  alignas(16) __shared__ float as[T::kProducts * T::kPlane];  // (kProducts,S,S) of A
  alignas(16) __shared__ float bs[T::kProducts * T::kPlane];  // (kProducts,S,S) of B
  const Problem& p = job.p;
  const int64_t begin = int64_t{blockIdx.x} * T::kProducts;
  const int products = static_cast<int>(p.batch - begin < T::kProducts ? p.batch - begin : T::kProducts);
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);

  // Neighbouring threads share a row of A or a quad of B, so that their reads of shared memory are merged.
  constexpr int kPair = T::Y == 1 ? 1 : 2;
  const int t = threadIdx.x, product = t / (T::X * T::Y);
  const int row = t % kPair + t / (kPair * T::X) % (T::Y / kPair) * kPair;  // first row; then every Y-th
  const int col = 4 * (t / kPair % T::X);                                   // first quad of columns; then every X-th
  const float* const a_rows = as + product * T::kPlane + row * T::kPitch;
  const float* const b_cols = bs + product * T::kPlane + col;

  float acc[T::TM][T::TN] = {};
  wait_for_predecessor();
  launch_dependents();
  int k0 = 0;
  do {
    const int depth = k - k0 < T::S ? k - k0 : T::S;
    ConstMatrix a = p.a.matrix(begin), b = p.b.matrix(begin);
    a.batch = p.a.batch;  // a single stride
    b.batch = p.b.batch;
    a.data += k0 * a.col;
    b.data += k0 * b.row;
    float4 next_a[T::kCopies], next_b[T::kCopies];
    if (job.a.by_cols)
      tiny_fetch<T, true>(next_a, a, products, m, depth, job.a.quads);
    else
      tiny_fetch<T, false>(next_a, a, products, m, depth, job.a.quads);
    if (job.b.by_cols)
      tiny_fetch<T, true>(next_b, b, products, depth, n, job.b.quads);
    else
      tiny_fetch<T, false>(next_b, b, products, depth, n, job.b.quads);
    if (k0) __syncthreads();  // the previous step has been multiplied
    if (job.a.by_cols)
      tiny_deposit<T, true>(as, next_a);
    else
      tiny_deposit<T, false>(as, next_a);
    if (job.b.by_cols)
      tiny_deposit<T, true>(bs, next_b);
    else
      tiny_deposit<T, false>(bs, next_b);
    __syncthreads();
#pragma unroll 1
    for (int q = 0; q < depth; q += 4) {
      alignas(16) float frag_a[T::TM][4], frag_b[4][T::TN];
#pragma unroll
      for (int r = 0; r < T::TM; ++r)
        *reinterpret_cast<float4*>(frag_a[r]) = quad_at(a_rows + r * T::Y * T::kPitch + q);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int s = 0; s < T::TN; s += 4)
          *reinterpret_cast<float4*>(&frag_b[j][s]) = quad_at(b_cols + (q + j) * T::kPitch + s * T::X);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int r = 0; r < T::TM; ++r)
#pragma unroll
          for (int u = 0; u < T::TN; ++u) {
            const int s = r % 2 ? T::TN - 1 - u : u;  // backwards, so that two FFMAs in a row share an operand
            acc[r][s] += frag_a[r][j] * frag_b[j][s];
          }
    }
    k0 += T::S;
  } while (T::S < ieee::kLargestTiny && k0 < k);

  if (product >= products) return;
  const ConstMatrix c = p.c.matrix(begin + product);
  const Matrix d = p.d.matrix(begin + product);
#pragma unroll
  for (int r = 0; r < T::TM; ++r)
#pragma unroll
    for (int s = 0; s < T::TN; ++s) acc[r][s] *= p.alpha;
  if (p.beta != 0) {  // reads all of C before the first store, because D may be C
#pragma unroll
    for (int r = 0; r < T::TM; ++r) {
      const int i = row + r * T::Y;
#pragma unroll
      for (int s = 0; s < T::TN; s += 4) {
        const int j = col + s * T::X;
        float addend[4] = {};
        if (job.c_quads) {
          if (i < m && j < n) *reinterpret_cast<float4*>(addend) = quad_at(c.at(i, j));
        } else {
#pragma unroll
          for (int u = 0; u < 4; ++u)
            if (i < m && j + u < n) addend[u] = *c.at(i, j + u);
        }
        add_c(p.beta, addend, reinterpret_cast<float(&)[4]>(acc[r][s]));
      }
    }
  }
#pragma unroll
  for (int r = 0; r < T::TM; ++r) {
    const int i = row + r * T::Y;
#pragma unroll
    for (int s = 0; s < T::TN; s += 4) {
      const int j = col + s * T::X;
      if (job.d_quads) {
        if (i < m && j < n)
          *reinterpret_cast<float4*>(d.at(i, j)) = make_float4(acc[r][s], acc[r][s + 1], acc[r][s + 2], acc[r][s + 3]);
      } else {
#pragma unroll
        for (int u = 0; u < 4; ++u)
          if (i < m && j + u < n) *d.at(i, j + u) = acc[r][s + u];
      }
    }
  }
}

template <int CLASS>
void launch_tiny(const TinyJob& job, const Context& context) {
  using T = TinyTile<CLASS>;
  const int64_t blocks = ceil_div(job.p.batch, T::kProducts);
  launch_overlapping(tiny<CLASS>, blocks, T::kThreads, context, job);
}

inline void Tiny::launch(const Problem& problem, const Plan& plan, const Context& context) {
  // If D's columns are contiguous, the product is transposed, so that they are stored as rows, four elements at a time.
  const Problem p = problem.d.col != 1 && problem.d.row == 1 ? transposed(problem) : problem;
  const TinyJob job = {p, ieee::tiny_read(p.a), ieee::tiny_read(p.b), has_quads(p.c), has_quads(p.d)};
  with_constant<ieee::kTinyCount>(plan.own<ieee::TinyPlan>().index,
                                  [&](auto index) { launch_tiny<index>(job, context); });
}

}  // namespace sgemm::SGEMM_BACKEND
