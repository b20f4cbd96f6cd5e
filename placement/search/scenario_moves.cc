#include "placement/search/scenario_moves.h"

#include "placement/search/scenario_walk.h"

namespace eplb {

std::vector<int32_t> ChooseForScenarios(const Domain& domain, const ScenarioLoads& loads,
                                        const ScenarioMoves& moves) {
  constexpr double kRounding = 1e-9;
  const double price = moves.price_of_all_slots / static_cast<double>(moves.incumbent.size());
  ScenarioWalk walk(
      domain, loads,
      {.layout = moves.incumbent, .copies_per_gpu = moves.copies_per_gpu, .price = price});
  walk.Start(moves.incumbent);
  std::vector<int32_t> best(moves.incumbent.begin(), moves.incumbent.end());
  double least = walk.Objective();
  const auto offer = [&](const std::vector<int32_t>& layout) {
    walk.Start(layout);  // so that the objective has no rounding of the walk's steps
    const LayoutCopies copies = CopiesBetween(domain, moves.incumbent, layout);
    const double score = walk.Objective() + price * copies.sum;
    if (score >= least - kRounding || copies.most > moves.copies_per_gpu) return;
    least = score;
    best = layout;
  };
  walk.Walk(moves.proposals, false, moves.abandoned);
  offer({walk.arrangement().experts().begin(), walk.arrangement().experts().end()});
  offer({moves.other.begin(), moves.other.end()});
  return best;
}

}  // namespace eplb
