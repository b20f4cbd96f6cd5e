#include "tests/simulation/explorer/symmetry.h"

#include <utility>

#include "tests/simulation/explorer/packed.h"
#include "tests/simulation/explorer/visited.h"

namespace eplb::explorer {
namespace {

using Expand = void (Model::*)(const World&, const Model::Visit&);

// All states that `expand` leads to, or those until the first that is wrong.
std::pair<Visited, std::string> Reach(Model& model, const Bounds& bounds, Expand expand) {
  Visited visited;
  const World start = model.Start();
  std::string violation = WhyNotPacked(start);
  (void)visited.Add(Pack(start));
  for (uint32_t index = 0; index < visited.size() && violation.empty(); ++index) {
    const World before = Unpack(visited[index], bounds);
    (model.*expand)(before, [&](const Successor& successor) {
      if (!violation.empty()) return;
      violation = successor.violation;
      const bool is_new = visited.Add(Pack(successor.world)).second;
      if (violation.empty() && is_new) violation = model.Check(successor.world);
    });
    if (violation.empty()) violation = WhyNotPacked(model);
  }
  return {std::move(visited), std::move(violation)};
}

}  // namespace

SymmetryFigures CompareWithRanksToldApart(const Bounds& bounds, Mutant mutant) {
  Model model(bounds, mutant);
  SymmetryFigures figures;
  auto [told_apart, violation] = Reach(model, bounds, &Model::ExpandToldApart);
  figures.told_apart = told_apart.size();
  figures.violation = std::move(violation);
  if (!figures.violation.empty()) return figures;
  auto [kept, kept_violation] = Reach(model, bounds, &Model::Expand);
  figures.kept = kept.size();
  figures.violation = std::move(kept_violation);
  Visited orbits;
  for (uint32_t index = 0; index < told_apart.size(); ++index) {
    const Packed orbit = Pack(model.Canonical(Unpack(told_apart[index], bounds)));
    if (!orbits.Add(orbit).second) continue;
    if (kept.Add(orbit).second) ++figures.missed;
  }
  figures.orbits = orbits.size();
  return figures;
}

}  // namespace eplb::explorer
