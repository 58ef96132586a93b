// Whole numbers from environment variables. Pure host code.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace sgemm {

// Returns the value of the variable `name`, or `otherwise` if it is unset or empty. Throws if the value is no whole
// number from `least` to `most`; the error quotes `accepted`.
inline int64_t whole_number_from_environment(const char* name, int64_t otherwise, int64_t least, int64_t most,
                                             const char* accepted) {
  const char* const text = std::getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const long long number = std::strtoll(text, &end, 10);
  if (*end || number < least || number > most)
    throw std::runtime_error(std::string("sgemm: ") + name + " is '" + text + "'; accepted: " + accepted);
  return number;
}

}  // namespace sgemm
