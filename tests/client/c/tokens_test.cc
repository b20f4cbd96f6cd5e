// The router's choices by the C ABI, on host memory: counted, turned by a table, and sent to slots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "client/c/eplb.h"
#include "tests/client/c/c_rank.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kTopK = 3;
constexpr int32_t kExperts = kSmallExperts;
constexpr int64_t kTokens = 333;

template <class Id>
eplb_choices ChoicesOf(const std::vector<Id>& ids, int64_t* counters) {
  eplb_choices choices = {};
  choices.struct_size = sizeof(choices);
  choices.expert_ids = ids.data();
  choices.counters = counters;
  choices.num_tokens = static_cast<int64_t>(ids.size()) / kTopK;
  choices.top_k = kTopK;
  choices.num_experts = kExperts;
  choices.id_type = sizeof(Id) == 8 ? EPLB_INT64 : EPLB_INT32;
  return choices;
}

// Some of them out of range, on both sides.
template <class Id>
std::vector<Id> RandomIds() {
  std::mt19937 random(7);
  std::vector<Id> ids(kTokens * kTopK);
  for (Id& id : ids) id = static_cast<Id>(random() % (kExperts + 2)) - 1;
  return ids;
}

bool IsExpert(int64_t id) { return id >= 0 && id < kExperts; }

std::vector<uint8_t> EveryFifthToken() {
  std::vector<uint8_t> is_padding(kTokens);
  for (size_t token = 0; token < is_padding.size(); token += 5) is_padding[token] = 255;
  return is_padding;
}

template <class Id>
std::vector<int64_t> PlainCounts(const std::vector<Id>& ids, const std::vector<uint8_t>& padding) {
  std::vector<int64_t> counts(kExperts + 1);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!padding.empty() && padding[i / kTopK] != 0) continue;
    ++counts[IsExpert(ids[i]) ? static_cast<size_t>(ids[i]) : kExperts];
  }
  return counts;
}

TEST(CTokensTest, NoTokensTouchNothing) {
  eplb_choices choices = ChoicesOf(std::vector<int32_t>{}, nullptr);
  choices.expert_ids = nullptr;
  EXPECT_EQ(eplb_count_tokens(&choices, nullptr), EPLB_OK) << eplb_last_message();
}

// Returns the error for choices that are right except for `change`.
std::string RefusalOf(const std::function<void(eplb_choices&)>& change) {
  const std::vector<int32_t> ids = {0, 1, 2};
  std::vector<int64_t> counters(kExperts + 1);
  eplb_choices choices = ChoicesOf(ids, counters.data());
  change(choices);
  EXPECT_EQ(eplb_count_tokens(&choices, nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_THAT(counters, ElementsAre(0, 0, 0, 0, 0));
  return eplb_last_message();
}

TEST(CTokensTest, MistakesOfChoicesAreNamed) {
  EXPECT_EQ(RefusalOf([](eplb_choices& c) { c.struct_size = 8; }),
            "choices.struct_size is 8, expected sizeof, which is 56 in this library");
  EXPECT_EQ(RefusalOf([](eplb_choices& c) { c.num_tokens = -1; }),
            "choices.num_tokens is -1, expected at least 0");
  EXPECT_EQ(RefusalOf([](eplb_choices& c) { c.top_k = 0; }),
            "choices.top_k is 0, expected at least 1");
  EXPECT_EQ(RefusalOf([](eplb_choices& c) { c.num_experts = 0; }),
            "choices.num_experts is 0, expected at least 1");
  EXPECT_EQ(RefusalOf([](eplb_choices& c) { c.id_type = 2; }),
            "choices.id_type is 2, expected an eplb_id_type");
  EXPECT_EQ(RefusalOf([](eplb_choices& c) { c.reserved = 1; }), "choices.reserved is not 0");
  EXPECT_EQ(RefusalOf([](eplb_choices& c) { c.expert_ids = nullptr; }),
            "choices.expert_ids is NULL");
  EXPECT_EQ(RefusalOf([](eplb_choices& c) { c.counters = nullptr; }), "choices.counters is NULL");
  EXPECT_EQ(RefusalOf([](eplb_choices& c) { c.num_tokens = int64_t{1} << 31; }),
            "count of 2147483648 tokens x 3 choices is above 2147483648");
  ExpectInvalid(eplb_count_tokens(nullptr, nullptr), "choices is NULL");
}

constexpr int64_t kSlotOfExpert[kExperts + 1] = {2, 0, 3, 1, -1};

template <class Id>
void TurnIsPlain() {
  for (const std::vector<uint8_t>& is_padding : {std::vector<uint8_t>(), EveryFifthToken()}) {
    const std::vector<Id> ids = RandomIds<Id>();
    std::vector<int64_t> counters(kExperts + 1);
    eplb_choices choices = ChoicesOf(ids, counters.data());
    choices.is_padding = is_padding.empty() ? nullptr : is_padding.data();
    std::vector<Id> expected = ids;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool is_skipped = !is_padding.empty() && is_padding[i / kTopK] != 0;
      if (is_skipped) expected[i] = -1;
      if (IsExpert(ids[i]) && !is_skipped) expected[i] = static_cast<Id>(kSlotOfExpert[ids[i]]);
    }
    std::vector<Id> slots(ids.size());
    ASSERT_EQ(eplb_turn_tokens(&choices, kSlotOfExpert, slots.data()), EPLB_OK);
    EXPECT_EQ(slots, expected);
    EXPECT_EQ(counters, PlainCounts(ids, is_padding));
    slots = ids;
    choices.expert_ids = slots.data();
    choices.counters = nullptr;
    ASSERT_EQ(eplb_turn_tokens(&choices, kSlotOfExpert, slots.data()), EPLB_OK);
    EXPECT_EQ(slots, expected) << "in place, without counting";
    std::vector<int64_t> alone(kExperts + 1);
    choices.expert_ids = ids.data();
    choices.counters = alone.data();
    ASSERT_EQ(eplb_turn_tokens(&choices, nullptr, nullptr), EPLB_OK);
    EXPECT_EQ(alone, counters) << "counts alone";
  }
}

TEST(CTokensTest, TurnsAreThoseOfAPlainLoop) {
  TurnIsPlain<int32_t>();
  TurnIsPlain<int64_t>();
}

TEST(CTokensTest, MistakesOfTurnsAreNamed) {
  const std::vector<int32_t> ids = {0, 1, 2};
  std::vector<int64_t> counters(kExperts + 1);
  const eplb_choices choices = ChoicesOf(ids, counters.data());
  std::vector<int32_t> slots(3);
  const auto refusal = [](int32_t code) {
    EXPECT_EQ(code, EPLB_INVALID_ARGUMENT);
    return std::string(eplb_last_message());
  };
  EXPECT_EQ(refusal(eplb_turn_tokens(nullptr, kSlotOfExpert, slots.data())), "choices is NULL");
  EXPECT_EQ(refusal(eplb_turn_tokens(&choices, nullptr, slots.data())), "slot_of_expert is NULL");
  EXPECT_EQ(refusal(eplb_turn_tokens(&choices, kSlotOfExpert, nullptr)), "slots is NULL");
  EXPECT_EQ(refusal(eplb_turn_tokens(&choices, kSlotOfExpert, const_cast<int32_t*>(&ids[1]))),
            "slots shares memory with choices.expert_ids, expected the same array or one apart "
            "from it");
  EXPECT_THAT(counters, ElementsAre(0, 0, 0, 0, 0));
}

// Three GPUs of two slots: experts 0 and 1 are on the first and on the last, 2 and 3 between them.
class CRoutingTest : public ::testing::Test {
 protected:
  CRoutingTest() : job_(3) {
    for (int32_t rank = 0; rank < 3; ++rank) {
      job_.rank(rank).options.num_slots = 6;
      job_.rank(rank).options.num_gpus = 3;
    }
  }
  void SetUp() override { ASSERT_EQ(job_.Start(), EPLB_OK); }

  CJob job_;
};

TEST_F(CRoutingTest, CountsInTheSamePassAndInPlace) {
  const std::vector<int64_t> ids = RandomIds<int64_t>();
  const std::vector<uint8_t> is_padding = EveryFifthToken();
  const eplb_client* client = job_.rank(1).client();
  std::vector<int64_t> expected(ids.size(), 77);
  const eplb_choices alone = ChoicesOf(ids, nullptr);
  ASSERT_EQ(eplb_client_route_tokens(client, 1, &alone, 0, expected.data(), {}), EPLB_OK)
      << eplb_last_message();
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(expected[i] < 0 ? -1 : expected[i] % kExperts, IsExpert(ids[i]) ? ids[i] : -1)
        << "as the static placement says";
    if (is_padding[i / kTopK] != 0) expected[i] = -1;
  }
  std::vector<int64_t> slots = ids;
  std::vector<int64_t> counters(kExperts + 1);
  eplb_choices choices = ChoicesOf(slots, counters.data());
  choices.is_padding = is_padding.data();
  ASSERT_EQ(eplb_client_route_tokens(client, 1, &choices, 0, slots.data(), {}), EPLB_OK)
      << eplb_last_message();
  EXPECT_EQ(slots, expected);
  EXPECT_EQ(counters, PlainCounts(ids, is_padding));
}

TEST_F(CRoutingTest, MistakesAreNamed) {
  std::vector<int32_t> ids = {0, 1, 2};
  std::vector<int32_t> slots(3);
  const eplb_choices choices = ChoicesOf(ids, nullptr);
  const auto refusal = [&](const eplb_client* client, int32_t layer, const eplb_choices& given,
                           void* written) {
    EXPECT_NE(eplb_client_route_tokens(client, layer, &given, 0, written, nullptr), EPLB_OK);
    return std::string(eplb_last_message());
  };
  const eplb_client* client = job_.rank(0).client();
  EXPECT_EQ(refusal(nullptr, 0, choices, slots.data()), "route_tokens: client is NULL");
  EXPECT_EQ(refusal(client, 3, choices, slots.data()), "layer is 3, expected 0..2");
  EXPECT_EQ(refusal(client, -1, choices, slots.data()), "layer is -1, expected 0..2");
  EXPECT_EQ(refusal(client, 0, choices, nullptr), "slots is NULL");
  EXPECT_THAT(refusal(client, 0, choices, ids.data() + 1),
              HasSubstr("slots shares memory with choices.expert_ids"));
  eplb_choices other = choices;
  other.num_experts = 5;
  EXPECT_EQ(refusal(client, 0, other, slots.data()), "choices.num_experts is 5, the client has 4");
  EXPECT_THAT(slots, ElementsAre(0, 0, 0));
  EXPECT_EQ(eplb_client_route_tokens(client, 0, &choices, 0, slots.data(), nullptr), EPLB_OK);
}

TEST(CTokensTest, RoutingNeedsTheTables) {
  CJob job(1);
  const std::vector<int32_t> ids = {0, 1, 2};
  std::vector<int32_t> slots(3);
  const eplb_choices choices = ChoicesOf(ids, nullptr);
  const auto route = [&] {
    return eplb_client_route_tokens(job.rank(0).client(), 0, &choices, 0, slots.data(), nullptr);
  };
  EXPECT_EQ(route(), EPLB_FAILED_PRECONDITION);
  EXPECT_STREQ(eplb_last_message(), "route_tokens was called before connect");
  ASSERT_EQ(job.rank(0).Connect(), EPLB_OK);
  EXPECT_EQ(route(), EPLB_FAILED_PRECONDITION);
  EXPECT_STREQ(eplb_last_message(), "route_tokens was called before register_experts");
  ASSERT_EQ(job.rank(0).Register(job.rank(0).MakeTensors()), EPLB_OK);
  EXPECT_EQ(route(), EPLB_OK) << eplb_last_message();
  EXPECT_EQ(slots, ids);
  ASSERT_EQ(eplb_client_close(job.rank(0).client(), nullptr), EPLB_OK);
  EXPECT_EQ(route(), EPLB_OK) << "the tables stay until destroy";
}

}  // namespace
}  // namespace eplb
