// eplb_plan_echo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/c/eplb.h"
#include "client/c/eplb_plan.h"

namespace eplb::c {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Expert 0 and 1 are alone on their GPUs; 0 is hot in the batch.
class CEchoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    eplb_plan_options options = {};
    ASSERT_EQ(eplb_plan_options_init(&options, sizeof(options)), EPLB_OK);
    options.num_layers = 1;
    options.num_experts = 2;
    options.num_slots = 2;
    options.num_gpus = 2;
    const int64_t load[] = {1, 1};
    ASSERT_EQ(eplb_plan_from_counts(&options, load, &homes_), EPLB_OK);
    ASSERT_EQ(eplb_echo_options_init(&options_, sizeof(options_)), EPLB_OK);
    int64_t slots[2] = {};
    ASSERT_EQ(eplb_plan_copy_maps(homes_, slots, nullptr, nullptr), EPLB_OK);
    hot_ = slots[0] == 0 ? 0 : 1;
    echo_ = {.struct_size = sizeof(echo_),
             .home_tokens = home_tokens_.data(),
             .source = source_.data(),
             .spare_tokens = spare_tokens_.data(),
             .num_slots = 2,
             .num_spares = 4};
  }
  void TearDown() override { eplb_plan_destroy(homes_); }

  int32_t Plan(const std::vector<int64_t>& counts) {
    return eplb_plan_echo(homes_, &options_, 0, counts.data(), static_cast<int32_t>(counts.size()),
                          &echo_);
  }

  eplb_plan* homes_ = nullptr;
  size_t hot_ = 0;  // its slot
  eplb_echo_options options_ = {};
  std::vector<int64_t> home_tokens_ = {-7, -7};
  std::vector<int32_t> source_ = {-7, -7, -7, -7};
  std::vector<int64_t> spare_tokens_ = {-7, -7, -7, -7};
  eplb_echo echo_ = {};
};

TEST_F(CEchoTest, PlansWithItsDefaults) {
  EXPECT_EQ(options_.tolerance, 0.01);
  EXPECT_EQ(options_.spare_slots, 2);
  EXPECT_EQ(options_.num_domains, 0);
  ASSERT_EQ(Plan({1900, 100}), EPLB_OK) << eplb_last_message();
  EXPECT_EQ(echo_.before, 1900);
  EXPECT_EQ(echo_.peak, 1009) << "1.01 of the mean, taken to 20 bits";
  EXPECT_EQ(echo_.bound, 1000);
  EXPECT_EQ(echo_.num_replicas, 1);
  EXPECT_EQ(home_tokens_[hot_], 1009);
  EXPECT_EQ(home_tokens_[1 - hot_], 100);
  EXPECT_EQ(source_[2 * (1 - hot_)], static_cast<int32_t>(hot_));
  EXPECT_EQ(spare_tokens_[2 * (1 - hot_)], 891);
}

TEST_F(CEchoTest, AnErrorNamesTheNumberAndWritesNothing) {
  const auto refused = [&](const std::vector<int64_t>& counts) {
    EXPECT_EQ(Plan(counts), EPLB_INVALID_ARGUMENT);
    return std::string(eplb_last_message());
  };
  EXPECT_THAT(refused({1}), HasSubstr("layer 0: tokens of 1 experts, expected 2"));
  EXPECT_THAT(refused({1, -1}), HasSubstr("layer 0: expert 1 has -1 tokens"));
  echo_.num_spares = 2;
  EXPECT_THAT(refused({1, 1}), HasSubstr("echo.num_spares is 2, the GPUs have 4"));
  echo_.num_spares = 4;
  options_.spare_slots = 0;
  EXPECT_THAT(refused({1, 1}), HasSubstr("spare_slots is 0, expected 1..1024"));
  options_.spare_slots = 2;
  EXPECT_EQ(eplb_plan_echo(nullptr, &options_, 0, nullptr, 0, &echo_), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_plan_echo(homes_, &options_, 0, nullptr, 2, &echo_), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_plan_echo(homes_, &options_, 0, home_tokens_.data(), 2, nullptr),
            EPLB_INVALID_ARGUMENT);
  EXPECT_THAT(home_tokens_, ElementsAre(-7, -7));
  EXPECT_THAT(source_, ElementsAre(-7, -7, -7, -7));
}

}  // namespace
}  // namespace eplb::c
