// GPUs of compute capability 9.0 whose SMs have slower tensor cores than an H200's.
#pragma once
#include <string_view>

namespace sgemm {

// Returns Device::tensor_rate of the GPU with this name. An H20 has 512 multiply-adds in a cycle and SM instead of
// 2048: 148 TFLOP/s of float16 with 78 SMs, by its data sheet.
constexpr double tensor_rate(std::string_view name) {
  constexpr std::string_view kH20 = "H20";
  const auto at = name.find(kH20);
  if (at == name.npos) return 1;
  const auto end = at + kH20.size();
  const bool longer = end < name.size() && name[end] >= '0' && name[end] <= '9';  // such as H200
  return longer ? 1 : 0.25;
}
static_assert(tensor_rate("NVIDIA H20") == 0.25 && tensor_rate("NVIDIA H20-3e") == 0.25);
static_assert(tensor_rate("NVIDIA H200") == 1 && tensor_rate("NVIDIA GH200 480GB") == 1 && tensor_rate("") == 1);

}  // namespace sgemm
