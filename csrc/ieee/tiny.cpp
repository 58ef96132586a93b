#include "tiny.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "../problem/cut.h"
#include "../problem/fastest.h"
#include "../problem/views.h"
#include "../models/models.h"

namespace sgemm::ieee {
namespace {

constexpr int kRequests = 4;  // requests for elements read one by one that replace one request of 16 bytes

// Predicted time with a class. Each block does one step of k after the other; the blocks of an SM share its four
// schedulers.
double seconds(const TinyClass& tile, const Problem& p, const Device& device) {
  const TinyModel& model = models().tiny;
  const bool quads_a = tiny_read(p.a).quads, quads_b = tiny_read(p.b).quads, quads_d = p.n % 4 == 0;
  const auto traffic = [&](double elements, bool quads) { return 4 * elements * (quads ? 1 : kRequests); };
  const double memory = traffic(double(p.m) * p.k * matrices(p.a, p.batch), quads_a) +
                        traffic(double(p.k) * p.n * matrices(p.b, p.batch), quads_b) +
                        traffic(double(p.m) * p.n * p.batch * (p.beta != 0 ? 2 : 1), quads_d);
  const double fours = tile.tm * tile.tn / 4, steps = std::max<int64_t>(1, ceil_div(p.k, tile.size));
  const auto read = [&](bool quads) { return quads ? model.read_quad : model.read_element; };
  const double store = quads_d ? model.store_quad : model.store_element;
  const double cycles =
      fours * (steps * (read(quads_a) + read(quads_b)) + store + 4 * model.ffma * (ceil_div(p.k, 4) * 4));
  const double blocks = ceil_div(ceil_div(p.batch, tile.products), device.sms);  // blocks of the busiest SM
  const double issue = blocks * cycles * tile.threads() / 32 / 4 / (device.clock_ghz * 1e9);
  // Blocks of a wave read together, then multiply together. With more waves, reads and multiplications overlap.
  const double wait = steps * (model.step + (quads_a && quads_b ? 0 : model.element));
  const double waves = std::max(1.0, std::ceil(blocks / tile.resident));
  const double moves = memory / (model.bandwidth * device.bandwidth_gbs * 1e9);
  return model.launch + wait + std::max({(waves - 1) * wait, issue, moves}) + std::min(issue, moves) / waves;
}

bool fits(const Problem& p) { return std::max({p.m, p.n, p.k}) <= kLargestTiny; }

template <class Visit>
void visit_plans(const Problem& p, const Device& device, const Visit& visit) {
  for (int i = 0; i < kTinyCount; ++i)
    if (kTinyClasses[i].size >= std::max(p.m, p.n)) visit(TinyPlan{i, seconds(kTinyClasses[i], p, device)});
}

}  // namespace

TinyRead tiny_read(const ConstMatrix& x) {
  const bool by_cols = x.col != 1 && (x.row == 1 || std::abs(x.row) < std::abs(x.col));
  return {by_cols, has_quads(by_cols ? transposed(x) : x)};
}

Plan tiny_plan(const Problem& p, const Device& device) {
  if (!fits(p)) return Plan(1);  // never taken
  const auto plan = fastest<TinyPlan>([&](const auto& visit) { visit_plans(p, device, visit); });
  return {plan.seconds, 0, plan};
}

void each_tiny_plan(const Problem& p, const Device& device, const PlanVisitor& visit) {
  if (fits(p)) visit_plans(p, device, [&](const TinyPlan& plan) { visit({plan.seconds, 0, plan}); });
}

std::string tiny_cut(const Plan& plan) {
  const int size = kTinyClasses[plan.own<TinyPlan>().index].size;
  return Cut().tile(size, size).text();
}

}  // namespace sgemm::ieee
