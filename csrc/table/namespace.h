// The namespace of the operators in torch.ops: `sgemm`, unless the build names another (SGEMM_NAMESPACE in CMake).
// Different names let several builds load into one process. The C++ namespace is always `sgemm`; its symbols are
// hidden.
#pragma once
#ifndef SGEMM_NAMESPACE
#define SGEMM_NAMESPACE sgemm
#endif

#define SGEMM_TEXT_OF(name) #name
#define SGEMM_TEXT(name) SGEMM_TEXT_OF(name)

namespace sgemm {

constexpr char kOperators[] = SGEMM_TEXT(SGEMM_NAMESPACE) "::";  // prefix of an operator's name: "sgemm::"

}  // namespace sgemm
