// Arguments of attention's operators, checked, as a problem.
#pragma once
#include <optional>
#include <string>

#include "../attention/attention.h"
#include "checks.h"

namespace sgemm {

inline constexpr int64_t kMostRows = (int64_t{1} << 30) - 1;  // of a tensor

// A problem without output, and the tensors that it reads.
struct AttentionArguments {
  attention::Problem p;
  Tensor query, key, value;

  AttentionArguments(const char* op, const Tensor& query, const Tensor& key, const Tensor& value,
                     const std::optional<Tensor>& mask, bool causal, double scale);
};

// Requires a condition on an argument.
void require(bool holds, const char* op, const char* name, const Tensor& tensor, const std::string& accepted);

// Returns a tensor in memory that a tensor map can describe: the tensor itself, or a copy.
Tensor mapped(const Tensor& x);

// A view of the heads' matrices. A single row has the stride of contiguous rows.
ConstMatrix heads_of(const Tensor& x);

// Returns a tensor (batches, heads, rows, depth) in memory of (batches, rows, heads, depth), and its view.
Tensor empty_heads(int64_t batches, int64_t heads, int64_t rows, int64_t depth, const Tensor& like);
Matrix output_heads(const Tensor& x);

}  // namespace sgemm
