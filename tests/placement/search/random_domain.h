// Seeded random domains, what makes a layout of one legal, and the best of all its layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "placement/search/arrangement.h"
#include "placement/search/domain.h"
#include "tests/placement/random_placement.h"

namespace eplb {

struct DomainOptions {
  int32_t max_experts = 12;
  int32_t max_gpus = 6;
  int32_t max_slots = 30;
  bool speeds = false;      // speeds out of 0.5, 1, 1.5 and 2
  bool duplicates = false;  // allow_duplicates by chance
};

// `num_slots` spread as a topology does: GPUs differ by at most one slot.
Domain MakeDomain(std::vector<double> load, int32_t num_slots, int32_t num_gpus);

// Loads of many kinds: small integers, decades apart, equal, one hot expert, none at all,
// fractions. A third of the domains has more slots than experts on some GPU.
Domain RandomDomain(Random& random, const DomainOptions& options);

// Replica counts within the limits that sum to the slots of the domain.
std::vector<int32_t> RandomCounts(Random& random, const Domain& domain);

// Every vector of counts within the limits that sums to the slots.
std::vector<std::vector<int32_t>> AllCounts(const Domain& domain);

// Gives the domain nodes, and each expert one of the nodes that `experts` holds it on as its home.
void AddNodeAffinity(Random& random, std::span<const int32_t> experts, Domain& domain);

// Makes sites of the GPUs by chance, and holds some of the experts that `experts` has on two there.
void AddSites(Random& random, std::span<const int32_t> experts, Domain& domain);

// Reason why a layout [S] is illegal; empty if it is legal. Reasons are an empty slot, an expert
// without a slot, and more or fewer copies on a GPU than the limits. Further reasons are an expert
// away from home, and one on a single site that must be on two.
std::string WhyIllegal(const Domain& domain, std::span<const int32_t> experts);

// Tokens of each GPU and the largest load, from nothing but the layout.
std::vector<double> TokensOf(const Domain& domain, std::span<const int32_t> experts);
double PeakOf(const Domain& domain, std::span<const int32_t> experts);

// Calls `visit` with every legal layout, one for all orders of the slots of a GPU.
void ForEachLayout(const Domain& domain,
                   const std::function<void(std::span<const int32_t> experts)>& visit);

// The least largest GPU load of all legal layouts.
double BestPeak(const Domain& domain);

std::string Describe(const Domain& domain);

// Expects that an arrangement's counts, units, lists and tokens are those of its layout.
void ExpectConsistent(const Arrangement& arrangement);

}  // namespace eplb
