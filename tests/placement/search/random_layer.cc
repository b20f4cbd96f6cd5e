#include "tests/placement/search/random_layer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

// Copies of an expert on a GPU that `available` experts could share are as few as can be.
std::string WhyCopied(const World& world, const Layer& slots, int32_t available) {
  for (int32_t gpu = 0; gpu < world.topology.num_gpus(); ++gpu) {
    if (!world.speeds.Usable(GpuId{gpu})) continue;
    const auto first = slots.begin() + world.topology.FirstSlotOf(GpuId{gpu}).value;
    const int32_t held = world.topology.SlotsOf(GpuId{gpu});
    int32_t beyond = 0;  // replicas of experts that are there once more than all can be
    for (const int32_t expert : std::set<int32_t>(first, first + held)) {
      const auto copies = static_cast<int32_t>(std::count(first, first + held, expert));
      if (copies > (held + available - 1) / available) {
        return absl::StrCat("GPU ", gpu, " holds expert ", expert, " ", copies, " times");
      }
      beyond += std::max(0, copies - held / available);
    }
    if (beyond > held % available) return absl::StrCat("GPU ", gpu, " lacks an expert");
  }
  return "";
}

// Nodes that hold all experts of a group.
std::set<int32_t> NodeAffinityOf(const World& world, const Layer& slots, int32_t group) {
  const int32_t per_group = world.topology.num_experts() / world.topology.num_groups();
  std::set<int32_t> affinities = NodesOf(world, slots, group * per_group);
  for (int32_t e = group * per_group; e < (group + 1) * per_group; ++e) {
    const std::set<int32_t> nodes = NodesOf(world, slots, e);
    std::erase_if(affinities, [&](int32_t node) { return !nodes.contains(node); });
  }
  return affinities;
}

std::string WhyNotStrict(const World& world, const Layer& slots) {
  std::vector<int32_t> groups_on(static_cast<size_t>(world.topology.num_nodes()));
  for (int32_t group = 0; group < world.topology.num_groups(); ++group) {
    const std::set<int32_t> affinities = NodeAffinityOf(world, slots, group);
    if (affinities.size() != 1) return absl::StrCat("group ", group, " is whole on no one node");
    ++groups_on[static_cast<size_t>(*affinities.begin())];
    const int32_t per_group = world.topology.num_experts() / world.topology.num_groups();
    for (int32_t e = group * per_group; e < (group + 1) * per_group; ++e) {
      if (NodesOf(world, slots, e) != affinities)
        return absl::StrCat("expert ", e, " is elsewhere too");
    }
  }
  const auto [fewest, most] = std::minmax_element(groups_on.begin(), groups_on.end());
  return *fewest == *most ? "" : "nodes have different numbers of groups";
}

}  // namespace

World RandomWorld(Random& random, const LayerSolverOptions& options) {
  while (true) {
    TopologyOptions shape;
    shape.num_layers = 100;  // so that thorough searches end soon
    shape.num_nodes = Pick(random, 1, 3);
    shape.num_gpus = shape.num_nodes * Pick(random, 1, 3);
    shape.num_groups = shape.num_nodes * Pick(random, 1, 3);
    shape.num_experts = shape.num_groups * Pick(random, 1, 3);
    const int32_t least = std::max(shape.num_experts, shape.num_gpus);
    shape.num_slots = Pick(random, least, 2 * least + 3);
    const Topology topology = *Topology::Make(shape);
    std::vector<double> speeds;
    std::vector<int32_t> unusable;
    const bool differ = Pick(random, 0, 1) == 0;
    for (int32_t gpu = 0; gpu < shape.num_gpus; ++gpu) {
      speeds.push_back(differ ? 0.5 * Pick(random, 1, 4) : 1.0);
      if (Pick(random, 0, 5) == 0) unusable.push_back(gpu);
    }
    const auto gpu_speeds = GpuSpeeds::Make(shape.num_gpus, speeds, unusable);
    if (!gpu_speeds.ok() || !LayerSolver::Check(topology, *gpu_speeds, options).ok()) continue;
    std::vector<double> load(static_cast<size_t>(shape.num_experts));
    for (double& tokens : load) tokens = Pick(random, 0, 50);
    if (Pick(random, 0, 9) == 0) std::fill(load.begin(), load.end(), 0.0);
    return {topology, *gpu_speeds, load};
  }
}

std::string Describe(const World& world) {
  const Topology& t = world.topology;
  return absl::StrCat(t.num_experts(), " experts on ", t.num_slots(), " slots, ", t.num_gpus(),
                      " GPUs, ", t.num_nodes(), " nodes, ", t.num_groups(), " groups; speeds ",
                      ::testing::PrintToString(std::vector<double>(world.speeds.speeds().begin(),
                                                                   world.speeds.speeds().end())),
                      " load ", ::testing::PrintToString(world.load));
}

std::set<int32_t> NodesOf(const World& world, const Layer& slots, int32_t expert) {
  std::set<int32_t> nodes;
  for (int32_t slot = 0; slot < world.topology.num_slots(); ++slot) {
    if (slots[static_cast<size_t>(slot)] != expert) continue;
    nodes.insert(world.topology.NodeOf(world.topology.GpuOf(SlotId{slot})).value);
  }
  return nodes;
}

void ExpectLegal(const World& world, const LayerSolverOptions& options, const Layer& slots) {
  for (int32_t slot = 0; slot < world.topology.num_slots(); ++slot) {
    const int32_t expert = slots[static_cast<size_t>(slot)];
    if (!world.speeds.Usable(world.topology.GpuOf(SlotId{slot}))) {
      EXPECT_EQ(expert, -1) << "slot " << slot;
    } else {
      EXPECT_GE(expert, 0) << "slot " << slot;
      EXPECT_LT(expert, world.topology.num_experts()) << "slot " << slot;
    }
  }
  const bool strict = options.hierarchy == Hierarchy::kStrict;
  const int32_t parts = strict ? world.topology.num_nodes() : 1;
  if (!options.allow_duplicates) {
    EXPECT_EQ(WhyCopied(world, slots, world.topology.num_experts() / parts), "");
  }
  EXPECT_EQ(strict ? WhyNotStrict(world, slots) : "", "");
  for (int32_t e = 0; e < world.topology.num_experts(); ++e) {
    EXPECT_FALSE(NodesOf(world, slots, e).empty()) << "expert " << e;
  }
  for (int32_t group = 0; group < world.topology.num_groups(); ++group) {
    if (options.hierarchy != Hierarchy::kSoft) break;
    EXPECT_FALSE(NodeAffinityOf(world, slots, group).empty()) << "group " << group;
  }
}

}  // namespace eplb
