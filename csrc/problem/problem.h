// The problem that every kernel solves, and the row that describes a kernel.
//
//   D[b,i,j] = f(alpha * sum_q A[b,i,q] * B[b,q,j] + beta * C[b,i,j])      float32
//
// No torch and no CUDA runtime here: the same header serves the CUDA build, the CPU build and the dispatch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>

#if defined(__CUDACC__)
#define SGEMM_HOST_DEVICE __host__ __device__
#else
#define SGEMM_HOST_DEVICE
#endif

namespace sgemm {

// How far apart the matrices of a batch are. A batch of two dimensions, as attention's sequences and heads, may have no
// stride of its own: it is in groups.
struct BatchStride {
  int64_t stride = 0;
  uint32_t group = 0;  // matrices; 0 if the whole batch is one group
  int64_t group_stride = 0;

  SGEMM_HOST_DEVICE constexpr BatchStride(int64_t stride = 0) : stride(stride) {}
  constexpr BatchStride(int64_t group_stride, int64_t group, int64_t stride)
      : stride(stride), group(static_cast<uint32_t>(group)), group_stride(group_stride) {}

  constexpr bool none() const { return stride == 0 && group == 0; }  // all share one matrix
  constexpr bool operator==(const BatchStride& x) const {
    return stride == x.stride && group == x.group && group_stride == x.group_stride;
  }
  SGEMM_HOST_DEVICE int64_t offset(int64_t b) const {
    if (group == 0) return b * stride;
    const uint32_t index = static_cast<uint32_t>(b);
    return index / group * group_stride + index % group * stride;
  }
};

// A batch of matrices in memory: element (i, j) of matrix b is data[batch.offset(b) + i*row + j*col]. Strides count
// elements; an input's may be 0 (expanded).
template <class T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0, cols = 0;
  int64_t row = 0, col = 0;  // strides
  BatchStride batch;

  SGEMM_HOST_DEVICE T* at(int64_t i, int64_t j) const { return data + i * row + j * col; }
  SGEMM_HOST_DEVICE bool contains(int64_t i, int64_t j) const { return i < rows && j < cols; }
  SGEMM_HOST_DEVICE MatrixView matrix(int64_t b) const { return {data + batch.offset(b), rows, cols, row, col, 0}; }

  // Zero outside: padding adds nothing to a sum, and 0 * 0 is no NaN.
  SGEMM_HOST_DEVICE float load(int64_t i, int64_t j) const { return contains(i, j) ? *at(i, j) : 0.0f; }
};
using Matrix = MatrixView<float>;
using ConstMatrix = MatrixView<const float>;

// What an operand's elements are in memory. `data` of one of 16 bits is their address all the same, and strides count
// them: only as views.h's in_16_bits() or elements.h has it, it may be read.
enum class ElementType : int { kFloat32, kBFloat16, kFloat16 };

// f: epilogue/activation.h. Where there is one, D is not C. kIdentity: D is what goes into another one, with the bits
// that it has there, for a kernel ends in other instructions with an f than without.
enum class Activation : int { kNone, kRelu, kGelu, kGeluTanh, kSilu, kIdentity };

struct Problem {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  float alpha = 1, beta = 0;
  ConstMatrix a;  // m x k
  ConstMatrix b;  // k x n
  ConstMatrix c;  // m x n; never read when beta is 0
  Matrix d;       // m x n; c itself when the product is in place
  Activation activation = Activation::kNone;

  // So much of k lies in memory before A's and B's first, and C is its sum: D adds up pieces of k, and alpha and beta
  // are 1. A kernel that has to compute an element again does so from there (epilogue/in_order.cuh).
  int64_t k_before = 0;

  ElementType elements_a = ElementType::kFloat32, elements_b = ElementType::kFloat32;

  // B as Backend::pack_b has split it, for this product and others; null if it hasn't. Then there is no batch.
  void* b_planes = nullptr;
};

// A block's tile of D, of a row that has several. A request may name it, as in "split_fp16x3:128x64".
struct TileSize {
  int bm, bn;
  const char* formerly = "";  // a row whose problems it has now, which a request may still name
};

// How a row cuts a problem up: made once, and kept with the choice. launch() finds all in it that is decided.
struct Plan {
  double seconds = 0;    // predicted
  size_t workspace = 0;  // bytes
  int tile = 0;          // of Kernel::tiles

  Plan() = default;
  explicit Plan(double seconds, size_t workspace = 0) : seconds(seconds), workspace(workspace) {}
  // `own`: what only the row knows.
  template <class T>
  Plan(double seconds, size_t workspace, const T& own, int tile = 0)
      : seconds(seconds), workspace(workspace), tile(tile) {
    static_assert(sizeof(T) <= sizeof own_ && std::is_trivially_copyable_v<T>);
    std::memcpy(own_, &own, sizeof own);
  }

  template <class T>
  T own() const {
    T own;
    std::memcpy(&own, own_, sizeof own);
    return own;
  }

 private:
  unsigned char own_[96] = {};
};
using PlanVisitor = std::function<void(const Plan&)>;

// The layouts that a kernel reads directly; operands of others are packed first.
enum class Reads {
  kAnyStrides,     // one element at a time
  kAlignedRows,    // float4 along a row: unit column stride, 16-byte aligned rows of whole float4s
  kMappedRows,     // rows that a tensor map can describe (can_be_mapped())
  kMappedAlongK,   // the same of A and of B's transpose: both lie along k
  kMappedBFloat16  // operands that are both bfloat16, along k or across: others are none of its problems
};

enum class DeviceType { kCpu, kCuda };

inline constexpr int kAnyArch = 1 << 20;

struct Device {
  DeviceType type = DeviceType::kCpu;
  int arch = 0;  // 90 for sm_90
  int sms = 1;   // SMs
  double clock_ghz = 1;
  double bandwidth_gbs = 1;  // device memory
  double l2_mb = 0;
  int code_arch = kAnyArch;  // that this build's code for the device was compiled for; 0 if it has none
  char name[256] = "";       // as the driver gives it
};

// On CPU tensors rows are chosen and cut up as for this GPU: the tests there then run what a GPU runs.
inline constexpr Device kH200 = {DeviceType::kCuda, 90, 132, 1.98, 4300, 60};
inline const Device& model_of(const Device& device) { return device.type == DeviceType::kCpu ? kH200 : device; }

using Stream = void*;  // cudaStream_t

// Where a launch happens.
struct Context {
  Stream stream = nullptr;
  const Device* device = nullptr;
  void* workspace = nullptr;  // of as many bytes as the plan asks for, 256-byte aligned; null if none
};

// A row of THE TABLE in kernels.cu, the only list of kernels.
struct Kernel {
  const char* name;
  const char* family;  // "ladder", "ieee", "split", "reference"; "" for PyTorch's own
  const char* idea;
  const char* source;
  int bm, bn, bk;  // block tile
  int tm, tn;      // thread tile
  int threads;     // a block
  Reads reads;
  int min_arch, max_arch;  // the lowest and the highest sm that run it; code compiled for less than min_arch doesn't
  double efficiency;       // fraction of the FFMA peak on whole tiles, measured; feeds the cost model
  void (*launch)(const Problem&, const Plan&, const Context&);  // null where this backend can't run it

  // The plan that is predicted to be fastest, and all of them, of which it is one. Null for a row of one kernel, which
  // dispatch.cpp predicts.
  Plan (*plan)(const Problem&, const Device&) = nullptr;
  void (*each_plan)(const Problem&, const Device&, const PlanVisitor&) = nullptr;
  std::string (*cut)(const Plan&) = nullptr;  // a plan in words (problem/cut.h), the same of no two different ones
  // Where plans have different tiles, all of them; the first is bm x bn.
  const TileSize* tiles = nullptr;
  int tile_count = 0;

  // What a row of one kernel needs for a problem, in bytes; null if nothing.
  size_t (*workspace)(const Problem&, const Device&) = nullptr;

  int max_size = 0;              // the largest m, n and k that it takes; 0 if any
  bool only_one_stride = false;  // of a batch; no groups

  // Applies Problem::activation as it stores; for the others it is a pass of its own.
  bool activates = false;
  bool takes_planes = false;     // Problem::b_planes, if there are any
  bool reads_16_bits = false;    // operands of 16 bits as they lie
  bool streams_16_bits = false;  // reads the larger operand as it lies where that has 16 bits; others, float32 copies

  int bits = 24;  // of an element's significand that are multiplied; fewer are no float32 product

  // The largest error of an element of a product of depth k that is proven for every input, in units of
  // 2^-24 |alpha| (|A||B|)_ij; null for rows that promise none.
  double (*error_bound)(int64_t k) = nullptr;

  bool in_auto = false;   // "auto" may take it
  int64_t auto_from = 0;  // for a k of so much and more

  // An element of D has the same bits whatever m, the batch and the other rows' data are, by `invariant_plan`, or by
  // whatever plan where that is null: "batch_invariant" may take it.
  bool batch_invariant = false;
  Plan (*invariant_plan)(const Problem&, const Device&) = nullptr;
};

inline constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

// How many tiles of `rows` rows of tiles, and as many columns, lie on the diagonal or above.
inline constexpr int64_t upper_tiles(int64_t rows) { return rows * (rows + 1) / 2; }

struct Table {
  const Kernel* rows;
  int size;
  const Kernel* begin() const { return rows; }
  const Kernel* end() const { return rows + size; }
};

}  // namespace sgemm
