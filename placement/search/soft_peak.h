// A smooth stand-in for the largest GPU load.
#ifndef EPLB_PLACEMENT_SEARCH_SOFT_PEAK_H_
#define EPLB_PLACEMENT_SEARCH_SOFT_PEAK_H_

#include <span>

namespace eplb {

// The soft peak of loads is
//   softness * ln(sum over GPUs of exp(load / softness)).
// The load of the next window differs by some noise on every GPU, and then any GPU near the top may
// be the hottest; the soft peak counts them all, those further below the top less and less. It is
// never below the largest load.

// The softness, as a load, where the largest load is `peak` and GPUs should come near `scale`. It
// grows with the distance, so that steps far from balance are told apart by how much they take.
// REQUIRES: scale > 0.
double SoftnessOf(double peak, double scale);

// Of the loads of GPUs, which should come near `scale`. REQUIRES: at least one load, scale > 0.
double SoftPeak(std::span<const double> loads, double scale);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_SOFT_PEAK_H_
