#include "models.h"

#include "fitted.h"

namespace sgemm {
namespace {

Models current = kFitted;

}  // namespace

const Models& models() { return current; }

void set_models(const Models& models) { current = models; }

}  // namespace sgemm
