#include "cuda/echo.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/cuda/echo_case.h"

namespace eplb::cuda {
namespace {

using testing::EchoCase;
using testing::EchoOutputs;

EchoArgs ArgsOf(const EchoCase& c, EchoOutputs& outputs) {
  EchoArgs args = c.shape;
  args.first_slot = c.first_slot.data();
  args.slot_expert = c.slot_expert.data();
  args.slot_num_replicas = c.slot_num_replicas.data();
  args.slot_replica_rank = c.slot_replica_rank.data();
  args.counts = c.counts.data();
  args.home_tokens = outputs.home_tokens.data();
  args.source = outputs.source.data();
  args.spare_tokens = outputs.spare_tokens.data();
  args.peaks = outputs.peaks.data();
  return args;
}

TEST(EchoOnHostTest, EqualsThePlanner) {
  for (const EchoCase& c : testing::EchoCases()) {
    SCOPED_TRACE(c.name);
    EchoOutputs outputs = testing::MakeOutputs(c.shape);
    const absl::Status planned = EchoOnHost(ArgsOf(c, outputs));
    ASSERT_TRUE(planned.ok()) << planned;
    EXPECT_EQ(outputs, c.expected);
  }
}

TEST(EchoOnHostTest, ErrorsNameTheNumber) {
  const EchoCase c = testing::EchoCases().front();
  EchoOutputs outputs = testing::MakeOutputs(c.shape);
  const EchoArgs good = ArgsOf(c, outputs);
  const auto message = [&](const std::function<void(EchoArgs&)>& change) {
    EchoArgs args = good;
    change(args);
    return std::string(EchoOnHost(args).message());
  };
  EXPECT_EQ(message([](EchoArgs& args) { args.num_layers = -1; }),
            "echo of -1 layers, 2 experts in 2 slots of 1 GPUs with 1 spare slots; expected >= 0, "
            "and >= 1 of each, and a slot for each GPU");
  EXPECT_EQ(message([](EchoArgs& args) { args.gpus_per_domain = 2; }),
            "echo in domains of 2 GPUs, expected a divisor of 1");
  EXPECT_EQ(message([](EchoArgs& args) { args.tolerance = -1; }),
            "echo with a tolerance of -1, expected 0..1048576");
  EXPECT_EQ(message([](EchoArgs& args) { args.num_slots = 4096; }),
            "echo of 4096 slots of 1 GPUs needs 81968 bytes a layer, a block has 49152");
  EXPECT_EQ(message([](EchoArgs& args) { args.spare_tokens = nullptr; }),
            "echo of 1 layers needs spare_tokens, it is null");
  EXPECT_TRUE(EchoOnHost({.num_layers = 0,
                          .num_experts = 1,
                          .num_slots = 1,
                          .num_gpus = 1,
                          .gpus_per_domain = 1,
                          .spares_per_gpu = 1})
                  .ok());
}

}  // namespace
}  // namespace eplb::cuda
