#include "placement/search/domain_bound.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace eplb {

namespace {

constexpr int kMaxBisections = 40;
constexpr double kPrecision = 1e-9;
// k beyond this has never bound in practice, and its cost grows with k.
constexpr int32_t kMaxUnits = 8;

// Ceiling that forgives rounding: a quotient a few last bits above an integer is that integer. The
// result may be one too small, never too large, which keeps the bound a bound.
double Ceiling(double quotient) { return std::ceil(quotient * (1 - 1e-12)); }

struct Saving {
  double slots;  // more slots
  double units;  // fewer long units
};

class Refuter {
 public:
  Refuter(const Domain& domain, int32_t units)
      : load_(domain.load),
        slots_(domain.num_slots()),
        units_(units),
        room_(static_cast<double>(domain.num_gpus()) * (units - 1)) {}

  // True when no arrangement keeps every GPU at or below `most` tokens.
  bool Refutes(double most) {
    double slots = 0;
    double long_units = 0;
    savings_.clear();
    for (const double load : load_) {
      const double few = std::max(1.0, Ceiling(load / most));
      slots += few;
      if (load / few <= most / units_ * (1 + 1e-12)) continue;
      long_units += few;
      savings_.push_back({Ceiling(units_ * load / most) - few, few});
    }
    if (slots > slots_) return true;
    if (long_units <= room_) return false;
    std::ranges::sort(savings_, [](const Saving& a, const Saving& b) {
      return a.slots * b.units < b.slots * a.units;
    });
    for (const Saving& saving : savings_) {
      const double part = std::min(1.0, (long_units - room_) / saving.units);
      slots += part * saving.slots;
      long_units -= part * saving.units;
      if (long_units <= room_) break;
    }
    return slots > slots_ * (1 + 1e-12);
  }

 private:
  const std::vector<double>& load_;
  double slots_;
  int32_t units_;
  double room_;
  std::vector<Saving> savings_;
};

// The least T for which `num_slots` slots are enough to keep every unit at or below T: each spare
// slot goes to the expert with most load per replica. An expert that already has ceil(w / T)
// replicas gets another only when every expert has, so the largest unit ends at T.
double LeastLargestUnit(const std::vector<double>& load, int32_t num_slots) {
  std::vector<int32_t> replicas(load.size(), 1);
  std::vector<std::pair<double, size_t>> heap;  // unit and expert
  for (size_t expert = 0; expert < load.size(); ++expert) heap.emplace_back(load[expert], expert);
  std::make_heap(heap.begin(), heap.end());
  for (auto spare = static_cast<int32_t>(load.size()); spare < num_slots; ++spare) {
    std::pop_heap(heap.begin(), heap.end());
    auto& [unit, expert] = heap.back();
    unit = load[expert] / ++replicas[expert];
    std::push_heap(heap.begin(), heap.end());
  }
  return heap.front().first;
}

}  // namespace

double DomainBound(const Domain& domain, bool any_split) {
  const double fastest = *std::ranges::max_element(domain.speed);
  double bound = domain.total_load() / domain.total_speed();
  if (bound == 0) return 0;
  bound = std::max(bound, LeastLargestUnit(domain.load, domain.num_slots()) / fastest);
  const double heaviest = *std::ranges::max_element(domain.load);
  const int32_t most_slots = *std::ranges::max_element(domain.slots);
  const int32_t most_units = any_split ? 1 : std::min(most_slots, kMaxUnits);
  for (int32_t units = 2; units <= most_units; ++units) {
    Refuter refuter(domain, units);
    if (!refuter.Refutes(bound * fastest)) continue;
    double refuted = bound * fastest;
    double open = std::max(refuted, heaviest) * units;
    if (refuter.Refutes(open)) continue;  // cannot happen; the bound stays proved without it
    for (int i = 0; i < kMaxBisections && open - refuted > kPrecision * refuted; ++i) {
      const double middle = (refuted + open) / 2;
      (refuter.Refutes(middle) ? refuted : open) = middle;
    }
    bound = refuted / fastest;
  }
  return bound;
}

}  // namespace eplb
