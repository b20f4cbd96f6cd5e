#include "tests/placement/search/random_domain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eplb {
namespace {

std::vector<double> RandomLoad(Random& random, int32_t num_experts) {
  std::vector<double> load(static_cast<size_t>(num_experts));
  const int32_t kind = Pick(random, 0, 5);
  for (double& tokens : load) {
    switch (kind) {
      case 0:
        tokens = Pick(random, 0, 9);
        break;
      case 1:
        tokens = static_cast<double>(int64_t{1} << Pick(random, 0, 20));
        break;
      case 2:
        tokens = 7;
        break;
      case 3:
        tokens = 1;
        break;
      case 4:
        tokens = 0;
        break;
      default:
        tokens = Pick(random, 0, 1'000'000) / 3e5;
        break;
    }
  }
  if (kind == 3) load[static_cast<size_t>(Pick(random, 0, num_experts - 1))] = 100;
  return load;
}

std::vector<int32_t> CountsOf(const Domain& domain, std::span<const int32_t> experts) {
  std::vector<int32_t> counts(domain.load.size());
  for (const int32_t expert : experts) ++counts[static_cast<size_t>(expert)];
  return counts;
}

std::set<int32_t> SitesOf(const Domain& domain, std::span<const int32_t> experts, int32_t expert) {
  const std::vector<int32_t> gpu_of = domain.GpuOfSlot();
  std::set<int32_t> sites;
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    if (experts[slot] == expert) sites.insert(domain.SiteOf(gpu_of[slot]));
  }
  return sites;
}

// Fills slots from `slot` on, experts rising on each GPU.
void Fill(const Domain& domain, std::span<const int32_t> gpu_of, size_t slot,
          std::vector<int32_t>& experts,
          const std::function<void(std::span<const int32_t> experts)>& visit) {
  if (slot == gpu_of.size()) {
    if (WhyIllegal(domain, experts).empty()) visit(experts);
    return;
  }
  const bool first = slot == 0 || gpu_of[slot] != gpu_of[slot - 1];
  const int32_t most = domain.MaxCopies(gpu_of[slot]);
  for (int32_t expert = first ? 0 : experts.back(); expert < domain.num_experts(); ++expert) {
    int32_t copies = 0;
    for (size_t s = slot; s > 0 && gpu_of[s - 1] == gpu_of[slot]; --s) {
      copies += experts[s - 1] == expert ? 1 : 0;
    }
    if (copies == most) continue;
    experts.push_back(expert);
    Fill(domain, gpu_of, slot + 1, experts, visit);
    experts.pop_back();
  }
}

void AddCounts(const Domain& domain, int32_t left, std::vector<int32_t>& counts,
               std::vector<std::vector<int32_t>>& all) {
  if (counts.size() == domain.load.size()) {
    if (left == 0) all.push_back(counts);
    return;
  }
  for (int32_t c = domain.MinReplicas(); c <= std::min(left, domain.MaxReplicas()); ++c) {
    counts.push_back(c);
    AddCounts(domain, left - c, counts, all);
    counts.pop_back();
  }
}

}  // namespace

Domain MakeDomain(std::vector<double> load, int32_t num_slots, int32_t num_gpus) {
  Domain domain;
  domain.load = std::move(load);
  for (int32_t gpu = 0; gpu < num_gpus; ++gpu) {
    domain.slots.push_back(num_slots / num_gpus + (gpu < num_slots % num_gpus ? 1 : 0));
  }
  domain.speed.assign(static_cast<size_t>(num_gpus), 1.0);
  return domain;
}

Domain RandomDomain(Random& random, const DomainOptions& options) {
  const int32_t gpus = Pick(random, 1, options.max_gpus);
  const int32_t experts = Pick(random, 1, options.max_experts);
  const int32_t least = std::max(experts, gpus);
  const int32_t most = Pick(random, 0, 2) == 0 ? experts * gpus + 2 * gpus : 2 * least;
  const int32_t slots =
      Pick(random, least, std::max(least, std::min<int32_t>(most, options.max_slots)));
  Domain domain = MakeDomain(RandomLoad(random, experts), slots, gpus);
  std::rotate(domain.slots.begin(), domain.slots.begin() + Pick(random, 0, gpus - 1),
              domain.slots.end());
  if (options.speeds) {
    for (double& speed : domain.speed) speed = 0.5 * Pick(random, 1, 4);
  }
  domain.allow_duplicates = options.duplicates && Pick(random, 0, 1) == 0;
  return domain;
}

std::vector<int32_t> RandomCounts(Random& random, const Domain& domain) {
  std::vector<int32_t> counts(domain.load.size(), domain.MinReplicas());
  int32_t left = domain.num_slots() - domain.MinReplicas() * domain.num_experts();
  // Now and then to few experts, so that some reach the most that they may have.
  const int32_t few = Pick(random, 1, domain.num_experts());
  while (left > 0) {
    const bool room = std::any_of(counts.begin(), counts.begin() + few,
                                  [&](int32_t c) { return c < domain.MaxReplicas(); });
    auto& count =
        counts[static_cast<size_t>(Pick(random, 0, (room ? few : domain.num_experts()) - 1))];
    if (count == domain.MaxReplicas()) continue;
    ++count;
    --left;
  }
  return counts;
}

std::vector<std::vector<int32_t>> AllCounts(const Domain& domain) {
  std::vector<std::vector<int32_t>> all;
  std::vector<int32_t> counts;
  AddCounts(domain, domain.num_slots(), counts, all);
  return all;
}

void AddNodeAffinity(Random& random, std::span<const int32_t> experts, Domain& domain) {
  domain.affine_node_of_gpu.clear();
  const int32_t nodes = Pick(random, 1, domain.num_gpus());
  for (int32_t gpu = 0; gpu < domain.num_gpus(); ++gpu)
    domain.affine_node_of_gpu.push_back(gpu % nodes);
  domain.affine_node_of_expert.assign(domain.load.size(), -1);
  size_t slot = 0;
  for (size_t gpu = 0; gpu < domain.slots.size(); ++gpu) {
    for (int32_t i = 0; i < domain.slots[gpu]; ++i) {
      int32_t& home = domain.affine_node_of_expert[static_cast<size_t>(experts[slot++])];
      if (home < 0 || Pick(random, 0, 2) == 0) home = domain.affine_node_of_gpu[gpu];
    }
  }
}

void AddSites(Random& random, std::span<const int32_t> experts, Domain& domain) {
  domain.site_of_gpu.clear();
  const int32_t sites = Pick(random, 1, domain.num_gpus());
  for (int32_t gpu = 0; gpu < domain.num_gpus(); ++gpu) domain.site_of_gpu.push_back(gpu % sites);
  if (Pick(random, 0, 1) == 0) domain.site_of_gpu.clear();
  domain.on_two_sites.clear();
  for (int32_t expert = 0; expert < domain.num_experts(); ++expert) {
    domain.on_two_sites.push_back(Pick(random, 0, 2) > 0 &&
                                  SitesOf(domain, experts, expert).size() > 1);
  }
}

std::string WhyIllegal(const Domain& domain, std::span<const int32_t> experts) {
  if (static_cast<int32_t>(experts.size()) != domain.num_slots()) return "wrong number of slots";
  for (const int32_t expert : experts) {
    if (expert < 0 || expert >= domain.num_experts()) return absl::StrCat("holds ", expert);
  }
  size_t first = 0;
  std::set<std::pair<int32_t, int32_t>> on_affine_node;  // expert, node
  for (int32_t gpu = 0; gpu < domain.num_gpus(); ++gpu) {
    const auto on_gpu =
        experts.subspan(first, static_cast<size_t>(domain.slots[static_cast<size_t>(gpu)]));
    first += on_gpu.size();
    for (int32_t expert = 0; expert < domain.num_experts(); ++expert) {
      const auto copies = static_cast<int32_t>(std::count(on_gpu.begin(), on_gpu.end(), expert));
      if (copies < domain.MinCopies(gpu) || copies > domain.MaxCopies(gpu)) {
        return absl::StrCat("GPU ", gpu, " holds expert ", expert, " ", copies, " times");
      }
      if (copies > 0 && domain.has_node_affinity()) {
        on_affine_node.emplace(expert, domain.affine_node_of_gpu[static_cast<size_t>(gpu)]);
      }
    }
  }
  const std::vector<int32_t> counts = CountsOf(domain, experts);
  for (int32_t expert = 0; expert < domain.num_experts(); ++expert) {
    const auto e = static_cast<size_t>(expert);
    if (counts[e] == 0) return absl::StrCat("expert ", expert, " has no slot");
    if (!domain.on_two_sites.empty() && domain.on_two_sites[e] &&
        SitesOf(domain, experts, expert).size() < 2) {
      return absl::StrCat("expert ", expert, " is on one site");
    }
    if (domain.has_node_affinity() &&
        !on_affine_node.contains({expert, domain.affine_node_of_expert[e]})) {
      return absl::StrCat("expert ", expert, " is not at home");
    }
  }
  return "";
}

std::vector<double> TokensOf(const Domain& domain, std::span<const int32_t> experts) {
  const std::vector<int32_t> counts = CountsOf(domain, experts);
  std::vector<double> tokens;
  size_t slot = 0;
  for (const int32_t slots : domain.slots) {
    tokens.push_back(0);
    for (int32_t i = 0; i < slots; ++i) {
      const auto expert = static_cast<size_t>(experts[slot++]);
      tokens.back() += domain.load[expert] / counts[expert];
    }
  }
  return tokens;
}

double PeakOf(const Domain& domain, std::span<const int32_t> experts) {
  const std::vector<double> tokens = TokensOf(domain, experts);
  double peak = 0;
  for (size_t gpu = 0; gpu < tokens.size(); ++gpu) {
    peak = std::max(peak, tokens[gpu] / domain.speed[gpu]);
  }
  return peak;
}

void ForEachLayout(const Domain& domain,
                   const std::function<void(std::span<const int32_t> experts)>& visit) {
  std::vector<int32_t> gpu_of;
  for (int32_t gpu = 0; gpu < domain.num_gpus(); ++gpu) {
    gpu_of.insert(gpu_of.end(), static_cast<size_t>(domain.slots[static_cast<size_t>(gpu)]), gpu);
  }
  std::vector<int32_t> experts;
  Fill(domain, gpu_of, 0, experts, visit);
}

double BestPeak(const Domain& domain) {
  double best = std::numeric_limits<double>::infinity();
  ForEachLayout(domain, [&](std::span<const int32_t> experts) {
    best = std::min(best, PeakOf(domain, experts));
  });
  return best;
}

std::string Describe(const Domain& domain) {
  return absl::StrCat("loads ", absl::StrJoin(domain.load, " "), "; slots ",
                      absl::StrJoin(domain.slots, " "), "; speeds ",
                      absl::StrJoin(domain.speed, " "),
                      domain.allow_duplicates ? "; duplicates allowed" : "");
}

void ExpectConsistent(const Arrangement& arrangement) {
  const Domain& domain = arrangement.domain();
  const std::vector<int32_t> counts = CountsOf(domain, arrangement.experts());
  const std::vector<double> tokens = TokensOf(domain, arrangement.experts());
  EXPECT_TRUE(std::equal(counts.begin(), counts.end(), arrangement.counts().begin()));
  const double rounding = 1e-12 * (domain.total_load() + 1);
  for (int32_t gpu = 0; gpu < domain.num_gpus(); ++gpu) {
    EXPECT_NEAR(arrangement.tokens(gpu), tokens[static_cast<size_t>(gpu)], rounding);
    EXPECT_GE(arrangement.MaxLoad(), arrangement.load(gpu));
  }
  EXPECT_EQ(arrangement.MaxLoad(), arrangement.load(arrangement.HottestGpu()));
  for (int32_t expert = 0; expert < domain.num_experts(); ++expert) {
    const auto e = static_cast<size_t>(expert);
    EXPECT_EQ(arrangement.unit(expert), domain.load[e] / counts[e]);
    std::set<int32_t> slots;
    for (int32_t s = arrangement.FirstOf(expert); s != Arrangement::kEmpty;
         s = arrangement.NextOf(s)) {
      EXPECT_EQ(arrangement.expert_in(s), expert);
      EXPECT_EQ(arrangement.unit_in(s), arrangement.unit(expert));
      ASSERT_TRUE(slots.insert(s).second);
    }
    EXPECT_EQ(slots.size(), static_cast<size_t>(counts[e]));
  }
}

}  // namespace eplb
