// The namespace of the operators in torch.ops: `sgemm`, unless the build names another (SGEMM_NAMESPACE in CMake), so
// that several builds can be loaded into one process. The C++ namespace is `sgemm` always; it is hidden.
#pragma once
#ifndef SGEMM_NAMESPACE
#define SGEMM_NAMESPACE sgemm
#endif

#define SGEMM_TEXT_OF(name) #name
#define SGEMM_TEXT(name) SGEMM_TEXT_OF(name)

namespace sgemm {

constexpr char kOperators[] = SGEMM_TEXT(SGEMM_NAMESPACE) "::";  // in front of an operator's name: "sgemm::"

}  // namespace sgemm
