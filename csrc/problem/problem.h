// The problem that every kernel solves, and the row that describes a kernel.
//
//   D[b,i,j] = f(alpha * sum_q A[b,i,q] * B[b,q,j] + beta * C[b,i,j])      float32
//
// This header does not include torch or the CUDA runtime, because the CUDA build, the CPU build and the dispatch share
// it.
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

// Distances between the matrices of a batch, in elements. A batch of two dimensions, such as attention's sequences and
// heads, may have no single stride; it is stored as groups.
struct BatchStride {
  int64_t stride = 0;
  uint32_t group = 0;  // matrices; 0 if the whole batch is one group
  int64_t group_stride = 0;

  SGEMM_HOST_DEVICE constexpr BatchStride(int64_t stride = 0) : stride(stride) {}
  constexpr BatchStride(int64_t group_stride, int64_t group, int64_t stride)
      : stride(stride), group(static_cast<uint32_t>(group)), group_stride(group_stride) {}

  constexpr bool none() const { return stride == 0 && group == 0; }  // the whole batch shares one matrix
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
// elements; an input's stride may be 0 (expanded).
template <class T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0, cols = 0;
  int64_t row = 0, col = 0;  // strides
  BatchStride batch;

  SGEMM_HOST_DEVICE T* at(int64_t i, int64_t j) const { return data + i * row + j * col; }
  SGEMM_HOST_DEVICE bool contains(int64_t i, int64_t j) const { return i < rows && j < cols; }
  SGEMM_HOST_DEVICE MatrixView matrix(int64_t b) const { return {data + batch.offset(b), rows, cols, row, col, 0}; }

  // Returns zero outside: padding adds nothing to a sum, and 0 * 0 is not NaN.
  SGEMM_HOST_DEVICE float load(int64_t i, int64_t j) const { return contains(i, j) ? *at(i, j) : 0.0f; }
};
using Matrix = MatrixView<float>;
using ConstMatrix = MatrixView<const float>;

// Type of an operand's elements in memory. With 16-bit types, `data` still has type float*, but strides count 16-bit
// elements. Such data must be read through in_16_bits() of views.h or through elements.h.
enum class ElementType : int { kFloat32, kBFloat16, kFloat16 };

// The function f of epilogue/activation.h. With any value except kNone, D is not C. kIdentity: D is the input of
// another activation, with the same bits as inside a kernel with f. A plain kernel may differ, because its epilogue
// compiles to other instructions.
enum class Activation : int { kNone, kRelu, kGelu, kGeluTanh, kSilu, kIdentity };

struct Problem {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  float alpha = 1, beta = 0;
  ConstMatrix a;  // m x k
  ConstMatrix b;  // k x n
  ConstMatrix c;  // m x n; never read when beta is 0
  Matrix d;       // equals c if the product is in place
  Activation activation = Activation::kNone;

  // Nonzero if D adds up pieces of k. Then k_before columns of A and rows of B precede this piece's operands in memory,
  // C is the sum of their products, and alpha and beta are 1. A kernel that recomputes an element starts there
  // (epilogue/in_order.cuh).
  int64_t k_before = 0;

  ElementType elements_a = ElementType::kFloat32, elements_b = ElementType::kFloat32;

  // B as split by Backend::pack_b, shared by several products; null if B is not split. Requires batch = 1.
  void* b_planes = nullptr;
};

// A block's tile of D, for rows with several tiles. A request may name it, as in "split_fp16x3:128x64".
struct TileSize {
  int bm, bn;
};

// Copies of the operands that a row can't read directly. `turn_`: the copy is transposed. `shared`: B is A transposed
// and uses A's copy; then floats_b is 0.
struct Packing {
  bool a, b;
  bool turn_a, turn_b;
  bool shared;
  int64_t floats_a, floats_b;  // sizes of the copies

  // Workspace of the copies, rounded up to align the buffer after them.
  size_t bytes() const { return (sizeof(float) * (floats_a + floats_b) + 255) / 256 * 256; }
};

// A row's decomposition of a problem. It is made once and cached with the choice; a launch takes all its decisions from
// here.
struct Plan {
  double seconds = 0;    // predicted time
  size_t workspace = 0;  // bytes that the row needs, behind the operand copies
  int tile = 0;          // index into Kernel::tiles
  Packing packing = {};  // the dispatch fills it in

  Plan() = default;
  explicit Plan(double seconds, size_t workspace = 0) : seconds(seconds), workspace(workspace) {}
  // `own`: data that only the row reads.
  template <class T>
  Plan(double seconds, size_t workspace, const T& own, int tile = 0)
      : seconds(seconds), workspace(workspace), tile(tile) {
    static_assert(sizeof(T) <= sizeof own_ && std::is_trivially_copyable_v<T>);
    std::memcpy(own_, &own, sizeof own);
  }

  size_t bytes() const { return packing.bytes() + workspace; }  // workspace of a launch

  template <class T>
  T own() const {
    T own;
    std::memcpy(&own, own_, sizeof own);
    return own;
  }

 private:
  unsigned char own_[208] = {};
};
using PlanVisitor = std::function<void(const Plan&)>;

// The layouts that a kernel reads directly; the dispatch packs operands of other layouts first.
enum class Reads {
  kAnyStrides,     // one element at a time
  kAlignedRows,    // float4 along a row: unit column stride, 16-byte aligned rows of whole float4s
  kMappedRows,     // rows that a tensor map can describe (can_be_mapped())
  kMappedAlongK,   // the same for A and Bᵀ: both are contiguous along k
  kMappedBFloat16  // both operands are bfloat16, contiguous along k or across; the row takes no other problems
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
  int code_arch = kAnyArch;  // arch that this build's device code was compiled for; 0 if there is none
  double tensor_rate = 1;    // 16-bit tensor-core operations of an SM in a cycle, relative to an H200's
  char name[256] = "";       // as reported by the driver
};

// For CPU tensors, rows are chosen and planned as for this GPU, so that CPU tests run the plans of a GPU.
inline constexpr Device kH200 = {DeviceType::kCuda, 90, 132, 1.98, 4300, 60};
inline const Device& model_of(const Device& device) { return device.type == DeviceType::kCpu ? kH200 : device; }

using Stream = void*;  // cudaStream_t

// Device, stream and workspace of a launch.
struct Context {
  Stream stream = nullptr;
  const Device* device = nullptr;
  void* workspace = nullptr;  // Plan::bytes(), 256-byte aligned; null if the plan needs none
};

// A row of THE TABLE in kernels.cu, the only list of kernels.
struct Kernel {
  const char* name;
  const char* family;  // "ladder", "ieee", "split", "reference"; "" for PyTorch's own kernel
  const char* idea;
  const char* source;
  int bm, bn, bk;  // block tile
  int tm, tn;      // thread tile
  int threads;     // per block
  Reads reads;
  int min_arch, max_arch;  // range of sm that runs the row; code compiled for less than min_arch does not run it
  double efficiency;       // fraction of the FFMA peak on whole tiles, measured; the cost model reads it
  void (*launch)(const Problem&, const Plan&, const Context&);  // null if this backend cannot run the row

  // plan: the plan with the shortest predicted time. each_plan: visits all plans, that one included. Both are null for
  // a row with a single kernel, whose time dispatch.cpp predicts.
  Plan (*plan)(const Problem&, const Device&) = nullptr;
  void (*each_plan)(const Problem&, const Device&, const PlanVisitor&) = nullptr;
  std::string (*cut)(const Plan&) = nullptr;  // a plan as text (problem/cut.h), unique for each plan
  // All tiles, if plans have different ones; the first is bm x bn.
  const TileSize* tiles = nullptr;
  int tile_count = 0;

  // Workspace that a row with a single kernel needs, bytes; null if none.
  size_t (*workspace)(const Problem&, const Device&) = nullptr;

  int max_size = 0;              // largest m, n and k that the row takes; 0 if unlimited
  bool only_one_stride = false;  // batches need a single stride; no groups

  // The kernel applies Problem::activation as it stores; for other rows a separate kernel applies it.
  bool activates = false;
  bool takes_planes = false;     // uses Problem::b_planes if there are any
  bool reads_16_bits = false;    // reads 16-bit operands directly
  bool streams_16_bits = false;  // reads the larger operand directly if it has 16 bits; other 16-bit operands are
                                 // copied to float32

  int bits = 24;  // significand bits of an element that are multiplied; fewer than 24 is not a float32 product

  // Largest proven error of an element, for any input and depth k, in units of 2^-24 |alpha| (|A||B|)_ij. Null for rows
  // without a proof.
  double (*error_bound)(int64_t k) = nullptr;

  bool in_auto = false;   // "auto" may take it
  int64_t auto_from = 0;  // smallest k for which "auto" takes the row
  // Largest size of the smaller of m and n for which the row is taken unless its name is given; 0 if unlimited.
  int64_t most_rows = 0;

  // An element of D has the same bits for every m, batch and content of the other rows. This holds for the plan of
  // `invariant_plan`, or for every plan if that is null. "batch_invariant" may take the row.
  bool batch_invariant = false;
  Plan (*invariant_plan)(const Problem&, const Device&) = nullptr;
};

inline constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Number of tiles on or above the diagonal, for `rows` rows and `rows` columns of tiles.
inline constexpr int64_t upper_tiles(int64_t rows) { return rows * (rows + 1) / 2; }

struct Table {
  const Kernel* rows;
  int size;
  const Kernel* begin() const { return rows; }
  const Kernel* end() const { return rows + size; }
};

}  // namespace sgemm
