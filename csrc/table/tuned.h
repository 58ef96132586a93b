// What torch_sgemm.tune() asks and sets: the problems for which a program asks for "auto", and the choices that were
// measured for them. Pure host code.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "choice_key.h"

namespace sgemm {

// A GPU by what doesn't change with a driver: its name tells an H100 from an H200, the SMs a part of it from the whole.
struct Gpu {
  std::string name;
  int arch, sms;

  explicit Gpu(const Device& device) : Gpu(device.name, device.arch, device.sms) {}
  Gpu(std::string name, int arch, int sms) : name(std::move(name)), arch(arch), sms(sms) {}
  bool operator<(const Gpu& x) const { return std::tie(name, arch, sms) < std::tie(x.name, x.arch, x.sms); }
  bool operator==(const Gpu& x) const { return std::tie(name, arch, sms) == std::tie(x.name, x.arch, x.sms); }
};

// A row and which of its plans(). How many plans it had tells a row that has changed since.
struct TunedChoice {
  std::string kernel;
  size_t plan, plans;
};
using TunedChoices = std::map<ChoiceKey, TunedChoice>;

// In place of those that were set before, for all GPUs.
void set_tuned(std::map<Gpu, TunedChoices> choices);

// Says once on stderr if choices were set, but none for this GPU.
std::optional<TunedChoice> tuned_choice(const Device& device, const ChoiceKey& key);

// Another number whenever a choice that was made before may no longer hold.
int64_t tuning_epoch();

// From now on, or no longer; those that were noted before are forgotten.
void note_problems(bool on);
void note_problem(const Device& device, const ChoiceKey& key);
std::vector<std::pair<Gpu, ChoiceKey>> noted_problems();  // in their order, each once

}  // namespace sgemm
