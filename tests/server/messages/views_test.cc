#include "server/messages/views.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "proto/wire/message_json.h"

namespace eplb {
namespace {

TEST(ViewsTest, ARefusalHasItsAge) {
  const absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  v1::Refusal refusal;
  ToProto({.job = "other", .reason = "no room", .count = 3, .at = now - absl::Seconds(90)}, now,
          &refusal);
  EXPECT_EQ(wire::ToJsonText(refusal),
            R"({"job":"other","reason":"no room","count":3,"seconds_ago":90.0})");
}

TEST(ViewsTest, AWindowHasItsCountsRowByRow) {
  LoadMatrix counts(2, 3);
  counts << 1, 2, 3, 4, 5, 6;
  core::WindowView window{.first_step = 10, .last_step = 19};
  window.load = std::make_shared<Load>(*Load::FromCounts(counts));
  v1::GetLoadResponse response;
  ToProto(window, &response);
  EXPECT_EQ(response.num_layers(), 2);
  EXPECT_EQ(response.num_experts(), 3);
  EXPECT_EQ(response.gpu_loads_size(), 0);  // a placement is not known
  std::vector<int64_t> read(6);
  ASSERT_EQ(response.counts_u64().size(), read.size() * sizeof(int64_t));
  std::memcpy(read.data(), response.counts_u64().data(), response.counts_u64().size());
  EXPECT_EQ(read, (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));

  window.on_gpus = std::make_shared<core::GpuTokens>(
      core::GpuTokens{.loads = RealMatrix::Constant(2, 2, 10.5), .versions = {3, 4}});
  ToProto(window, &response);
  EXPECT_EQ(std::vector<double>(response.gpu_loads().begin(), response.gpu_loads().end()),
            std::vector<double>(4, 10.5));
  EXPECT_EQ(std::vector<uint64_t>(response.versions().begin(), response.versions().end()),
            (std::vector<uint64_t>{3, 4}));
}

}  // namespace
}  // namespace eplb
