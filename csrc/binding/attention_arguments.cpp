#include "attention_arguments.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/core/ScalarType.h>

#include <limits>

#include "../problem/views.h"
#include "product.h"

namespace sgemm {
namespace {

// Requires float32 of four dimensions that a tensor map, or a quad of elements, can read.
void check_input(const char* op, const char* name, const Tensor& x, const Tensor& query) {
  check_tensor(op, name, x, query, 4);
  const int64_t depth = x.size(3);
  require(depth % 8 == 0 && 8 <= depth && depth <= attention::kMostDepth && x.stride(3) == 1, op, name, x,
          "a last dimension of 8 to 128, a multiple of 8, with stride 1");
  require(x.numel() > 0 && x.numel() / depth <= kMostRows, op, name, x, "sizes above 0, and less than 2^30 rows");
}

void check_inputs(const char* op, const Tensor& query, const Tensor& key, const Tensor& value) {
  check_input(op, "query", query, query);
  check_input(op, "key", key, query);
  check_input(op, "value", value, query);
  require(key.size(0) == query.size(0) && query.size(1) % key.size(1) == 0 && key.size(3) == query.size(3), op, "key",
          key, "the query's batches and last dimension, and a number of heads that divides the query's");
  require(value.size(0) == key.size(0) && value.size(1) == key.size(1) && value.size(2) == key.size(2), op, "value",
          value, "the key's batches, heads and rows");
}

attention::Mask mask_of(const char* op, const Tensor& mask, const Tensor& query, const Tensor& key) {
  using torch::headeronly::ScalarType;
  check_defined(op, "attn_mask", mask);
  const bool boolean = mask.scalar_type() == ScalarType::Bool;
  require((boolean || Float32::holds(mask)) && mask.dim() == 4 && OnDevice::holds(mask, query), op, "attn_mask", mask,
          "bool or float32 of four dimensions on the query's device");
  require(mask.size(0) == query.size(0) && mask.size(1) == query.size(1) && mask.size(2) == query.size(2) &&
              mask.size(3) == key.size(2),
          op, "attn_mask", mask, "shape (batches, heads, queries, keys)");
  attention::Mask m;
  m.data = mask.const_data_ptr();
  m.kind = boolean ? attention::MaskKind::kBool : attention::MaskKind::kFloat;
  m.batch = mask.stride(0);
  m.head = mask.stride(1);
  m.row = mask.stride(2);
  m.key = mask.stride(3);
  const int64_t element = boolean ? 1 : 4;
  m.in_pairs = m.key == 1 && mask.size(3) % 2 == 0 && m.row % 2 == 0 && m.head % 2 == 0 && m.batch % 2 == 0 &&
               reinterpret_cast<uintptr_t>(m.data) % (2 * element) == 0;
  return m;
}

}  // namespace

void require(bool holds, const char* op, const char* name, const Tensor& tensor, const std::string& accepted) {
  if (!holds) reject(op, name, tensor, accepted);
}

ConstMatrix heads_of(const Tensor& x) {
  ConstMatrix heads = view(x);
  if (heads.rows == 1) heads.row = heads.cols;
  return heads;
}

Tensor mapped(const Tensor& x) {
  const auto holds = [](const Tensor& t) { return can_be_mapped(heads_of(t), t.size(0) * t.size(1)); };
  if (holds(x)) return x;
  const Tensor contiguous = torch::stable::contiguous(x);
  return holds(contiguous) ? contiguous : torch::stable::clone(contiguous);
}

Tensor empty_heads(int64_t batches, int64_t heads, int64_t rows, int64_t depth, const Tensor& like) {
  const Tensor memory = empty({batches, rows, heads, depth}, like);
  return view_as(memory, {batches, heads, rows, depth}, {memory.stride(0), memory.stride(2), memory.stride(1), 1});
}

Matrix output_heads(const Tensor& x) {
  return {static_cast<float*>(x.mutable_data_ptr()), x.size(2), x.size(3), x.stride(2), 1,
          {x.stride(0), x.size(1), x.stride(1)}};
}

AttentionArguments::AttentionArguments(const char* op, const Tensor& query_, const Tensor& key_, const Tensor& value_,
                                       const std::optional<Tensor>& mask, bool causal, double scale) {
  check_inputs(op, query_, key_, value_);
  p.batches = static_cast<int>(query_.size(0));
  p.heads = static_cast<int>(query_.size(1));
  p.groups = static_cast<int>(key_.size(1));
  p.queries = static_cast<int>(query_.size(2));
  p.keys = static_cast<int>(key_.size(2));
  p.depth = static_cast<int>(query_.size(3));
  p.value_depth = static_cast<int>(value_.size(3));
  p.causal = causal;
  p.scale = static_cast<float>(scale);
  if (mask) p.mask = mask_of(op, *mask, query_, key_);
  query = mapped(query_);
  key = mapped(key_);
  value = mapped(value_);
  p.q = heads_of(query);
  p.k = heads_of(key);
  p.v = heads_of(value);
}

}  // namespace sgemm
