// SGEMM_BOX: PyTorch's TORCH_BOX for functions with strings, without a leak. PyTorch's conversion to std::string
// (stableivalue_conversions.h of 2.11) never deletes a string that it makes, so each call would leak one per argument.
#pragma once
#include <torch/csrc/stable/library.h>

#include <optional>
#include <string>
#include <type_traits>

namespace sgemm {

struct StringArgument {
  std::string value;
};

// The type that PyTorch converts an argument of type T to.
template <class T>
struct Unboxed {
  using Type = T;
};
template <>
struct Unboxed<std::string> {
  using Type = StringArgument;
};
template <>
struct Unboxed<std::optional<std::string>> {
  using Type = std::optional<StringArgument>;
};

template <class T>
const T& argument(const T& x) {
  return x;
}
inline const std::string& argument(const StringArgument& x) { return x.value; }
inline std::optional<std::string> argument(const std::optional<StringArgument>& x) {
  return x ? std::optional<std::string>(x->value) : std::nullopt;
}

template <auto FUNCTION>
struct Boxed;
template <class Result, class... Args, Result (*FUNCTION)(Args...)>
struct Boxed<FUNCTION> {
  static Result call(const typename Unboxed<std::decay_t<Args>>::Type&... args) { return FUNCTION(argument(args)...); }
};

#define SGEMM_BOX(function) TORCH_BOX((&::sgemm::Boxed<(function)>::call))

}  // namespace sgemm

template <>
struct torch::stable::detail::ToImpl<sgemm::StringArgument> {
  // Rest: arguments that PyTorch's versions differ in.
  template <class... Rest>
  static sgemm::StringArgument call(StableIValue value, Rest...) {
    const auto handle = to<StringHandle>(value);
    size_t length;
    TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
    const char* data;
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
    sgemm::StringArgument result = {{data, length}};
    TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
    return result;
  }
};
