#include "placement/search/scenario_moves.h"

#include "placement/search/scenario_walk.h"

namespace eplb {

std::vector<int32_t> ChooseForScenarios(const Domain& domain, const ScenarioLoads& loads,
                                        const ScenarioMoves& moves) {
  const double price = moves.price_of_all_slots / static_cast<double>(moves.incumbent.size());
  ScenarioWalk walk(
      domain, loads,
      {.layout = moves.incumbent, .copies_per_gpu = moves.copies_per_gpu, .price = price});
  walk.Start(moves.incumbent);
  std::vector<int32_t> best(moves.incumbent.begin(), moves.incumbent.end());
  double least = walk.Objective();
  const auto offer = [&](std::span<const int32_t> layout) {
    const LayoutCopies copies = CopiesBetween(domain, moves.incumbent, layout);
    const double score = walk.Objective() + price * copies.sum;
    if (score >= least || copies.most > moves.copies_per_gpu) return;
    least = score;
    best.assign(layout.begin(), layout.end());
  };
  walk.Walk(moves.proposals, false, moves.abandoned);
  offer(walk.arrangement().experts());
  walk.Start(moves.other);
  offer(moves.other);
  return best;
}

}  // namespace eplb
