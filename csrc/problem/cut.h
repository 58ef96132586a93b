// A plan as text, for benchmark results: "tile=128x64 cluster=2". Pure host code.
#pragma once
#include <cstdint>
#include <string>

namespace sgemm {

class Cut {
 public:
  Cut& tile(int rows, int cols) { return word("tile", std::to_string(rows) + "x" + std::to_string(cols)); }
  // Omits the number if it has its `usual` value.
  Cut& number(const char* name, int64_t value, int64_t usual) {
    return value == usual ? *this : word(name, std::to_string(value));
  }
  const std::string& text() const { return text_; }

 private:
  Cut& word(const char* name, const std::string& value) {
    text_ += (text_.empty() ? "" : " ") + std::string(name) + "=" + value;
    return *this;
  }

  std::string text_;
};

}  // namespace sgemm
