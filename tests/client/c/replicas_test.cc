// Replicas in training by the C ABI.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "client/c/eplb.h"
#include "tests/client/c/c_rank.h"

namespace eplb {
namespace {

// Two GPUs: slots 0..2 and 3..5; experts 0 and 1 are in slots 4 and 5, too.
class CReplicasTest : public ::testing::Test {
 protected:
  CReplicasTest() : job_(2) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      job_.rank(rank).options.num_slots = 6;
      job_.rank(rank).options.state_placement = EPLB_STATE_WITH_PRIMARY;
    }
  }
  void SetUp() override { ASSERT_EQ(job_.Start(), EPLB_OK); }

  static eplb_replica_rows RowsOf(std::vector<double>& rows, int32_t layer) {
    eplb_replica_rows result = {};
    result.struct_size = sizeof(result);
    result.name = "gradient";
    result.base = rows.data();
    result.row_bytes = sizeof(double);
    result.row_stride = sizeof(double);
    result.num_rows = 3;
    result.layer = layer;
    result.type = EPLB_FLOAT64;
    return result;
  }

  CJob job_;
};

TEST_F(CReplicasTest, MistakesAreNamed) {
  CRank& rank = job_.rank(0);
  std::vector<double> gradient(3);
  const auto refusal = [&](const std::function<void(eplb_replica_rows&)>& change) {
    eplb_replica_rows rows = RowsOf(gradient, 1);
    change(rows);
    EXPECT_EQ(eplb_client_reduce_gradients(rank.client(), &rows, 1, nullptr),
              EPLB_INVALID_ARGUMENT);
    return rank.message();
  };
  EXPECT_EQ(refusal([](eplb_replica_rows& rows) { rows.struct_size = 8; }),
            "rows[0].struct_size is 8, expected sizeof, which is 56 in this library");
  EXPECT_EQ(refusal([](eplb_replica_rows& rows) { rows.type = 4; }),
            "rows[0].type is 4, expected an eplb_gradient_type");
  EXPECT_EQ(refusal([](eplb_replica_rows& rows) { rows.reserved = 1; }),
            "rows[0].reserved is not 0");
  EXPECT_EQ(refusal([](eplb_replica_rows& rows) { rows.name = "a\nb"; }),
            "tensor \"a\\nb\": expected a name of one line");
  EXPECT_EQ(refusal([](eplb_replica_rows& rows) {
              rows.name = nullptr;
              rows.num_rows = 2;
            }),
            "tensor \"rows[0]\": has 2 rows, GPU 0 has 3 slots");
  EXPECT_EQ(eplb_client_broadcast_weights(rank.client(), nullptr, 1, nullptr),
            EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank.message(), "rows is NULL");
  const eplb_replica_rows rows = RowsOf(gradient, 1);
  double squares[3] = {1, 1, 1};
  EXPECT_EQ(eplb_client_expert_squares(rank.client(), &rows, 1, nullptr, squares, 3),
            EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank.message(), "num_squares is 3, expected 12, num_layers * num_experts");
  EXPECT_EQ(squares[0], 0) << "nobody reads what was left";
  EXPECT_EQ(eplb_client_expert_squares(rank.client(), &rows, 1, nullptr, nullptr, 12),
            EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank.message(), "squares is NULL");
  EXPECT_EQ(eplb_client_reduce_gradients(nullptr, &rows, 1, nullptr), EPLB_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace eplb
