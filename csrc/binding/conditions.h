// THE LIST of what a product requires of its arguments, each condition once. An operator fails with the text of the
// first condition that doesn't hold (checks.h). An override takes a call if all its conditions hold; otherwise it
// counts the first one's reason and leaves the call to PyTorch (override.cpp).
#pragma once
#include <string>

#include "torch_calls.h"

namespace sgemm {

// Reasons why an override leaves a call to PyTorch, in the order of their names in override.cpp.
struct Refusal {
  enum Reason {
    kNone,
    kDtype,
    kLayout,
    kDevice,
    kShape,
    kFactor,
    kPrecision,
    kDisabled,
    kOutShape,
    kOutShared,
    kOutOverlaps,
    kFailed
  };
};

// A condition on the first argument of `holds`. `accepted`: the text of an error, behind "accepted: ". A condition
// without that text is only the overrides', one without kReason only the operators'.
struct Float32 {
  static constexpr Refusal::Reason kReason = Refusal::kDtype;
  static bool holds(const Tensor& x);
  static std::string accepted(const Tensor& x);
};
struct Float32Or16 {
  static bool holds(const Tensor& x);
  static std::string accepted(const Tensor& x);
};
struct Strided {  // the dispatcher passes no other layout to the operators
  static constexpr Refusal::Reason kReason = Refusal::kLayout;
  static bool holds(const Tensor& x);
};
struct OnDevice {
  static constexpr Refusal::Reason kReason = Refusal::kDevice;
  static bool holds(const Tensor& x, const Tensor& like);
  static std::string accepted(const Tensor& x, const Tensor& like);
};
struct Dimensions {
  static constexpr Refusal::Reason kReason = Refusal::kShape;
  static bool holds(const Tensor& x, int dims);
  static std::string accepted(const Tensor& x, int dims);
};

// The sizes of b. Precondition: it has as many dimensions as a.
struct BatchOf {
  static constexpr Refusal::Reason kReason = Refusal::kShape;
  static bool holds(const Tensor& b, const Tensor& a);
  static std::string accepted(const Tensor& b, const Tensor& a);
};
struct RowsForColumnsOf {
  static constexpr Refusal::Reason kReason = Refusal::kShape;
  static bool holds(const Tensor& b, const Tensor& a);
  static std::string accepted(const Tensor& b, const Tensor& a);
};

struct InRange {  // a factor in the range of float32, or Inf or NaN
  static constexpr Refusal::Reason kReason = Refusal::kFactor;
  static bool holds(double factor);
  static std::string accepted(double factor);
};

// The shape of the product, (m, n) or (batch, m, n), and one that broadcasts to it.
struct ProductShape {
  static constexpr Refusal::Reason kReason = Refusal::kOutShape;
  static bool holds(const Tensor& out, const Tensor& a, const Tensor& b);
  static std::string accepted(const Tensor& out, const Tensor& a, const Tensor& b);
};
struct Broadcasts {
  static constexpr Refusal::Reason kReason = Refusal::kShape;
  static bool holds(const Tensor& c, const Tensor& a, const Tensor& b);
  static std::string accepted(const Tensor& c, const Tensor& a, const Tensor& b);
};

struct Writable {  // no two elements share memory
  static constexpr Refusal::Reason kReason = Refusal::kOutOverlaps;
  static bool holds(const Tensor& out);
  static std::string accepted(const Tensor& out);
};

// An output shares no memory with an input; or it is the addend itself.
struct Apart {
  static bool holds(const Tensor& out, const Tensor& input, const char* name);
  static std::string accepted(const Tensor& out, const Tensor& input, const char* name);
};
struct ApartOrSame {
  static bool holds(const Tensor& out, const Tensor& c, const char* name);
  static std::string accepted(const Tensor& out, const Tensor& c, const char* name);
};

// The overrides require more, so that PyTorch decides what overlaps and words the error: another storage.
struct OtherStorage {
  static constexpr Refusal::Reason kReason = Refusal::kOutShared;
  static bool holds(const Tensor& out, const Tensor& input);
};
struct OtherStorageOrSame {
  static constexpr Refusal::Reason kReason = Refusal::kOutShared;
  static bool holds(const Tensor& out, const Tensor& c);
};

// Arguments of a layer.
struct Features {
  static bool holds(const Tensor& x);
  static std::string accepted(const Tensor& x);
};
struct ColumnsForFeaturesOf {
  static bool holds(const Tensor& weight, const Tensor& x);
  static std::string accepted(const Tensor& weight, const Tensor& x);
};
struct BiasOf {
  static bool holds(const Tensor& bias, const Tensor& weight);
  static std::string accepted(const Tensor& bias, const Tensor& weight);
};

struct PlanesOf {  // the result of pack() for b
  static bool holds(const Tensor& planes, const Tensor& b);
  static std::string accepted(const Tensor& planes, const Tensor& b);
};

}  // namespace sgemm
