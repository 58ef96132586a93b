// Powers of two along k that bring both operands to like magnitudes, where features are in units of their own: what the
// splitting pass multiplies one of A's columns by, it divides B's row by, so that the product is the same.
//
// Idea:   row scales can't help where one k is large in A and small in B and another one the other way. How large each
//         is shows in a few rows of either operand, which a short kernel reads ahead of the pass, if these are alike.
//         Where they are not, or no good part of a chunk of k differs by more than kLikeBits between the operands, all
//         of the chunk stays as it is: so do ordinary data, and those with range but none of their own for each k.
// Bound:  one launch, about 5 us: for products that take a hundred times as long (SplitPlan::balances).
#pragma once
#include <cfloat>

#include "format.cuh"
#include "job.h"

namespace sgemm::split {

constexpr int kLikeBits = 8;       // by which magnitudes of A and B may differ, for float16 has range for that
constexpr int kMostBalanced = 40;  // bits of a factor
constexpr int kApartShare = 4;     // of a chunk's k, one in so many is a good part
constexpr int kUnlikeShare = 8;    // and one in so many, of which the sampled rows are unlike, is too many
constexpr int kSampledGroups = 4;  // of two neighbours each
constexpr int kAlikeBits = 6;      // by which the largest of groups may differ

// What the sampled rows tell of one k: the exponent of the second of the groups' largest, as it lies in a float, 0 for
// zeros, so that no group alone decides; and whether all are alike.
struct Sampled {
  int exponent;
  bool alike;
};
__device__ __forceinline__ Sampled sample(const Operand& x, int entry, int64_t k, int64_t depth) {
  const auto row = [&](int i) { return x.size * (i / 2) / kSampledGroups + i % 2; };
  float rows[2 * kSampledGroups];
  read_elements(
      rows, x.at(entry, 0, k), [&](int i) { return row(i) * x.stride; },
      [&](int i) { return k < depth && row(i) < x.size; });
  const auto finite = [](float x) { return magnitude(x) < kInfinity ? magnitude(x) : 0; };
  int least = 255, second = 0, most = 0;
#pragma unroll
  for (int i = 0; i < 2 * kSampledGroups; i += 2) {
    const int exponent = max(finite(rows[i]), finite(rows[i + 1])) >> 23;
    least = min(least, exponent);
    second = max(second, min(most, exponent));
    most = max(most, exponent);
  }
  return {second, most == 0 || (least > 0 && most - least <= kAlikeBits)};
}

// A block a chunk of k of an entry of the batch, a thread one of k.
__global__ void __launch_bounds__(kBalanceChunk) choose_balance(const __grid_constant__ Job job) {
  const int entry = blockIdx.x / job.balance_chunks(), chunk = blockIdx.x % job.balance_chunks();
  const int k = chunk * kBalanceChunk + threadIdx.x;
  wait_for_predecessor();
  launch_dependents();
  const int64_t depth = job.depth(entry);
  const Sampled a = sample(job.a, entry, k, depth), b = sample(job.b, entry, k, depth);
  const int apart = a.exponent && b.exponent ? b.exponent - a.exponent : 0;
  const int found = min(max(0, abs(apart) - kLikeBits) / 2, kMostBalanced);
  const int of_chunk = static_cast<int>(min(depth - chunk * kBalanceChunk, int64_t{kBalanceChunk}));
  const int many = __syncthreads_count(found), unlike = __syncthreads_count(!a.alike || !b.alike);
  const bool balances = kApartShare * many >= of_chunk && kUnlikeShare * unlike <= of_chunk;
  const int bits = balances ? found : 0;
  if (k < job.steps * kStep) job.balance[entry * job.steps * kStep + k] = power_of_two(apart < 0 ? -bits : bits);
  if (threadIdx.x == 0) job.balanced[blockIdx.x] = balances;
}

// Whether some of k has a factor, by a warp: each lane asks for a chunk.
__device__ __forceinline__ bool some_balanced(const Job& job, int64_t entry) {
  const int chunks = job.balance ? job.balance_chunks() : 0, lane = threadIdx.x % 32;
  static_assert(kMaxSlice <= 32 * kBalanceChunk);
  return lane < chunks && job.balanced[entry * chunks + lane];
}

// What leaves float32's range stays within it, and is no zero: rows of which that may matter aren't certified.
__device__ __forceinline__ float balanced(float x, float factor) {
  const float product = x * factor;
  if (isinf(product) && !isinf(x)) return copysignf(FLT_MAX, x);
  return product == 0 && x != 0 ? copysignf(FLT_TRUE_MIN, x) : product;
}
__device__ __forceinline__ bool is_in_range(uint32_t largest) {
  return largest == 0 || largest >= kInfinity ||
         (largest >= __float_as_uint(0x1p-99f) && largest < __float_as_uint(0x1p120f));
}

// A thread's `count` quads, of which the first has the first of the factors, and each the one `apart` further.
template <int THREADS>
static __device__ __noinline__ void balance_quads(float4* quads, int count, const float* factors, int apart,
                                                  bool along_k, bool of_b) {
  const auto factor = [&](float of_a) { return of_b ? __uint_as_float(2 * 0x3f800000 - __float_as_uint(of_a)) : of_a; };
#pragma unroll 1
  for (int j = 0; j < count; ++j, factors += apart) {
    float4 of_k;
    if (along_k)
      of_k = *reinterpret_cast<const float4*>(factors);
    else
      of_k = make_float4(*factors, *factors, *factors, *factors);
    float4& x = quads[j * THREADS];
    x = make_float4(balanced(x.x, factor(of_k.x)), balanced(x.y, factor(of_k.y)), balanced(x.z, factor(of_k.z)),
                    balanced(x.w, factor(of_k.w)));
  }
}

}  // namespace sgemm::split
