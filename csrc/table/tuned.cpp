#include "tuned.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

namespace sgemm {
namespace {

std::mutex mutex;
std::map<Gpu, TunedChoices> tuned;
std::set<Gpu> told;  // GPUs reported on stderr as having no choices
std::vector<std::pair<Gpu, ChoiceKey>> noted;
bool noting = false;
std::atomic<int64_t> epoch{0};

void tell(const Gpu& gpu) {
  if (tuned.empty() || !told.insert(gpu).second) return;
  std::string names;
  for (const auto& [other, choices] : tuned) names += (names.empty() ? "" : ", ") + other.name;
  std::fprintf(stderr, "torch_sgemm: the choices that were tuned are for %s, none for %s (%d SMs): predictions hold\n",
               names.c_str(), gpu.name.c_str(), gpu.sms);
}

}  // namespace

void set_tuned(std::map<Gpu, TunedChoices> choices) {
  const std::lock_guard<std::mutex> lock(mutex);
  tuned = std::move(choices);
  told.clear();
  ++epoch;
}

std::optional<TunedChoice> tuned_choice(const Device& device, const ChoiceKey& key) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (tuned.empty()) return std::nullopt;
  const Gpu gpu(device);
  const auto choices = tuned.find(gpu);
  if (choices == tuned.end()) {
    tell(gpu);
    return std::nullopt;
  }
  const auto choice = choices->second.find(key);
  if (choice == choices->second.end()) return std::nullopt;
  return choice->second;
}

int64_t tuning_epoch() { return epoch.load(std::memory_order_relaxed); }

void note_problems(bool on) {
  const std::lock_guard<std::mutex> lock(mutex);
  noting = on;
  noted.clear();
  ++epoch;  // invalidates the problems in the threads' caches
}

void note_problem(const Device& device, const ChoiceKey& key) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!noting) return;
  const std::pair<Gpu, ChoiceKey> problem(device, key);
  if (std::find(noted.begin(), noted.end(), problem) == noted.end()) noted.push_back(problem);
}

std::vector<std::pair<Gpu, ChoiceKey>> noted_problems() {
  const std::lock_guard<std::mutex> lock(mutex);
  return noted;
}

}  // namespace sgemm
