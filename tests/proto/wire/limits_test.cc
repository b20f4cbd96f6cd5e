#include "proto/wire/limits.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "proto/wire/convert.h"

#include "eplb/v1/session.pb.h"

namespace eplb::wire {
namespace {

// Of all shapes with the most slots those that take most bytes: one layer has the largest numbers,
// and the most layers have the most lengths and tags.
const TopologyOptions kShapes[] = {{.num_layers = 1,
                                    .num_experts = kMaxSlotsOfAllLayers,
                                    .num_slots = kMaxSlotsOfAllLayers,
                                    .num_gpus = 1},
                                   {.num_layers = kMaxLayers,
                                    .num_experts = kMaxSlotsOfAllLayers / kMaxLayers,
                                    .num_slots = kMaxSlotsOfAllLayers / kMaxLayers,
                                    .num_gpus = 1}};

template <class Message>
int64_t SizeOf(const Message& message) {
  std::conditional_t<std::is_constructible_v<UpMessage, Message>, v1::Up, v1::Down> out;
  ToProto(message, &out);
  return static_cast<int64_t>(out.ByteSizeLong());
}

TEST(LimitsTest, AProposalOfAllLayersFitsAndSoDoesThePlacement) {
  for (const TopologyOptions& shape : kShapes) {
    const Placement placement = Placement::Static(*Topology::Make(shape));
    Propose propose{.reason = std::string(2048, 'x')};
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      propose.layers.push_back(placement.Layer(LayerId{layer}));
    }
    EXPECT_LE(SizeOf(propose), kMaxMessageBytes) << shape.num_layers;
    EXPECT_LE(SizeOf(PlacementBody{.placement = placement}), kMaxMessageBytes) << shape.num_layers;
  }
}

TEST(LimitsTest, AReportOfTheWidestCountsFits) {
  LoadReport report;
  report.counts =
      LoadMatrix::Constant(kMaxLayers, kMaxSlotsOfAllLayers / kMaxLayers, int64_t{1} << 62);
  EXPECT_LE(SizeOf(report), kMaxMessageBytes);
  EXPECT_GE(SizeOf(report), kMaxReportBytes);
}

TEST(LimitsTest, AHelloThatNamesEveryModelLayerFits) {
  Hello hello;
  hello.model_layers.assign(kMaxLayers, (1 << 30));
  EXPECT_LE(SizeOf(hello), kMaxRestBytes);
}

}  // namespace
}  // namespace eplb::wire
