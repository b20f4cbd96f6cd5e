// The contract of every ControlChannel. The claims are in control_channel_contract.cc and run
// against each kind that instantiates the suite.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "client/rows/control/control_channel.h"

namespace eplb {

using Channels = std::vector<std::unique_ptr<ControlChannel>>;
using MakeChannels = Channels (*)(int32_t world_size);

class ControlChannelContractTest : public ::testing::TestWithParam<MakeChannels> {
 protected:
  Channels Make(int32_t world_size) {
    Channels channels = GetParam()(world_size);
    EXPECT_EQ(channels.size(), static_cast<size_t>(world_size));
    return channels;
  }
  static constexpr absl::Duration kLong = absl::Seconds(30);
  static constexpr absl::Duration kShort = absl::Milliseconds(150);
};

}  // namespace eplb
