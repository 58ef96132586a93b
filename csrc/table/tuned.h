// State behind torch_sgemm.tune(): the problems for which a program requests "auto", and the choices that were measured
// for them. Pure host code.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "choice_key.h"

namespace sgemm {

// A GPU, identified by properties that don't change with the driver. The name distinguishes an H100 from an H200; the
// number of SMs distinguishes a part of a GPU from the whole.
struct Gpu {
  std::string name;
  int arch, sms;

  explicit Gpu(const Device& device) : Gpu(device.name, device.arch, device.sms) {}
  Gpu(std::string name, int arch, int sms) : name(std::move(name)), arch(arch), sms(sms) {}
  bool operator<(const Gpu& x) const { return std::tie(name, arch, sms) < std::tie(x.name, x.arch, x.sms); }
  bool operator==(const Gpu& x) const { return std::tie(name, arch, sms) == std::tie(x.name, x.arch, x.sms); }
};

// A row and the index of one of its plans(). `plans`, the number of plans at the time, reveals a row that has changed
// since.
struct TunedChoice {
  std::string kernel;
  size_t plan, plans;
};
using TunedChoices = std::map<ChoiceKey, TunedChoice>;

// Replaces all earlier choices of all GPUs.
void set_tuned(std::map<Gpu, TunedChoices> choices);

// Returns the measured choice for a problem, if there is one. Prints one message to stderr if choices were set, but
// none for this GPU.
std::optional<TunedChoice> tuned_choice(const Device& device, const ChoiceKey& key);

// Returns a number that changes whenever an earlier choice may no longer hold.
int64_t tuning_epoch();

// Starts or stops recording problems; forgets those recorded before.
void note_problems(bool on);
void note_problem(const Device& device, const ChoiceKey& key);
std::vector<std::pair<Gpu, ChoiceKey>> noted_problems();  // each problem once, in the order of recording

}  // namespace sgemm
