// Operators behind torch_sgemm/measure/tuning.py and choice/tuned.py.
#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "../table/describe.h"
#include "../table/namespace.h"
#include "../table/tuned.h"
#include "boxed.h"
#include "checks.h"
#include "product.h"

namespace sgemm {
namespace {

ChoiceKey key_of(const char* op, const int64_t* numbers) {
  ChoiceKey key;
  std::copy_n(numbers, key.size(), key.begin());
  for (const int at : {0, 1, 2, 3})
    if (key[at] < 1) fail(op, "a problem's m, n, k or batch is below 1");
  return key;
}

std::string noted() { return describe_noted(noted_problems()); }

// problem: the numbers of a ChoiceKey
std::string candidates_of(std::vector<int64_t> problem, std::vector<int64_t> device, const std::string& name) {
  constexpr const char* op = "_candidates";
  if (problem.size() != std::tuple_size_v<ChoiceKey>)
    fail(op, "as many numbers of the problem as a key's are accepted");
  const Device d = device_from(op, device, name);
  return describe_candidates(backend(d.type).table, problem_like(key_of(op, problem.data())), d);
}

// Sets the measured choices. `lines`: one line per choice, with the GPU's name, a tab, and the row's name. `numbers`
// has for each choice the GPU's arch and SMs, the plan, the number of plans at the time, and the problem's key.
void set_choices(const std::string& lines, std::vector<int64_t> numbers) {
  constexpr const char* op = "_set_tuned";
  constexpr size_t kEach = 4 + std::tuple_size_v<ChoiceKey>;
  std::map<Gpu, TunedChoices> choices;
  std::istringstream text(lines);
  size_t at = 0;
  for (std::string line; std::getline(text, line); at += kEach) {
    const size_t tab = line.find('\t');
    if (tab == std::string::npos || at + kEach > numbers.size()) fail(op, "lines and numbers don't fit together");
    const int64_t* each = numbers.data() + at;
    const Gpu gpu(line.substr(0, tab), static_cast<int>(each[0]), static_cast<int>(each[1]));
    choices[gpu][key_of(op, each + 4)] = {line.substr(tab + 1), static_cast<size_t>(each[2]),
                                          static_cast<size_t>(each[3])};
  }
  if (at != numbers.size()) fail(op, "lines and numbers don't fit together");
  set_tuned(std::move(choices));
}

// Computes out = activation(alpha a b + beta c) by "auto". Operands may have any dimensions that an operator takes.
void product_into(const Tensor& out, const Tensor& a, const Tensor& b, const std::optional<Tensor>& c,
                  const std::optional<Tensor>& planes, const std::optional<std::string>& activation, double alpha,
                  double beta) {
  constexpr const char* op = "_product";
  check_inputs(op, a, b, static_cast<int>(std::clamp<int64_t>(a.dim(), 2, 4)));
  check_output(op, "out", out, a, b);
  if (c && a.dim() == 4) fail(op, "argument 'c' is given; accepted: with operands of 2 or 3 dimensions");
  if (c) check_addend(op, *c, a, b, &out);
  if (planes) check_planes(op, *planes, b);
  ProductExtras extras;
  extras.activation = activation_named(op, activation);
  extras.planes = planes ? &*planes : nullptr;
  product(op, out, c ? &*c : nullptr, a, b, alpha, c ? beta : 0, kAuto, extras);
}

}  // namespace
}  // namespace sgemm

STABLE_TORCH_LIBRARY_FRAGMENT(SGEMM_NAMESPACE, m) {
  m.def("_note_problems(bool on) -> ()");
  m.def("_noted_problems() -> str");
  m.def("_candidates(int[] problem, int[] device, str name) -> str");
  m.def("_set_tuned(str lines, int[] numbers) -> ()");
  m.def(
      "_product(Tensor(a!) out, Tensor a, Tensor b, Tensor? c, Tensor? planes, str? activation, *, float alpha=1, "
      "float beta=1) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CPU, m) { m.impl("_product", SGEMM_BOX(&sgemm::product_into)); }

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CUDA, m) { m.impl("_product", SGEMM_BOX(&sgemm::product_into)); }

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CompositeExplicitAutograd, m) {
  m.impl("_note_problems", SGEMM_BOX(&sgemm::note_problems));
  m.impl("_noted_problems", SGEMM_BOX(&sgemm::noted));
  m.impl("_candidates", SGEMM_BOX(&sgemm::candidates_of));
  m.impl("_set_tuned", SGEMM_BOX(&sgemm::set_choices));
}
