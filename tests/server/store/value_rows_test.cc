#include "server/store/value_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/foreign_text.h"
#include "tests/support/messages.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

sqlite::Row PlanRow(const v1::Plan& plan) {
  return {std::string("job"), int64_t{1}, sqlite::Bytes{plan.SerializeAsString()}};
}

v1::Plan KeptPlan() { return MessageOf<v1::Plan>("plan: 1 result: PLAN_RESULT_KEPT"); }

TEST(ValueRowsTest, ARecordWithAnUnknownValueIsRefused) {
  for (const int value : {-1, 0, 100}) {
    v1::Plan plan = KeptPlan();
    plan.set_result(static_cast<v1::PlanResult>(value));
    EXPECT_EQ(PlanOf(PlanRow(plan)).status().code(), absl::StatusCode::kDataLoss) << value;
  }
  v1::Plan plan = KeptPlan();
  plan.set_split("batch\n");
  EXPECT_EQ(PlanOf(PlanRow(plan)).status(),
            absl::DataLossError("a record's split is \"batch \", expected equal or batch"));
  StoredWindow window{.job = "job", .figures = {}};
  window.figures.set_split("token");
  EXPECT_EQ(WindowOf(RowOf(window)).status().code(), absl::StatusCode::kDataLoss);
  core::StoredJob job{.job = "job"};
  job.end.emplace().set_ending(static_cast<v1::RunEnding>(100));
  EXPECT_EQ(JobOf(RowOf(job)).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ValueRowsTest, ANumberThatNoDaemonWritesIsRefusedByTheNameOfItsField) {
  constexpr auto kLarge = uint64_t{1} << 63;
  v1::Plan plan = KeptPlan();
  plan.set_peak_fall(std::numeric_limits<double>::infinity());
  EXPECT_EQ(PlanOf(PlanRow(plan)).status(),
            absl::DataLossError("a record's peak_fall is not finite"));
  plan = KeptPlan();
  plan.mutable_times()->add_chunks()->set_version(kLarge);
  EXPECT_EQ(PlanOf(PlanRow(plan)).status(),
            absl::DataLossError("a record's version is 9223372036854775808, above 2^63-1"));
  plan = KeptPlan();
  plan.set_num_chunks(std::numeric_limits<uint32_t>::max());
  EXPECT_THAT(std::string(PlanOf(PlanRow(plan)).status().message()), HasSubstr("num_chunks"));
  StoredWindow window{.job = "job", .figures = {}};
  window.figures.add_versions(3);
  window.figures.add_versions(kLarge);
  EXPECT_THAT(std::string(WindowOf(RowOf(window)).status().message()), HasSubstr("versions"));
}

TEST(ValueRowsTest, RepeatedFieldsOfARecordAreMessagesOrCountsAsTheirCheckRequires) {
  std::vector types = {v1::RunEnd::descriptor(), v1::Plan::descriptor(), v1::JobEvent::descriptor(),
                       v1::Window::descriptor()};
  for (size_t i = 0; i < types.size(); ++i) {
    for (int at = 0; at < types[i]->field_count(); ++at) {
      const auto& field = *types[i]->field(at);
      if (field.message_type() != nullptr) types.push_back(field.message_type());
      EXPECT_TRUE(!field.is_repeated() || field.message_type() != nullptr ||
                  field.cpp_type() == field.CPPTYPE_UINT64)
          << field.full_name();
    }
  }
}

TEST(ValueRowsTest, LongTextsAreCutAndFiguresWithoutAValueAreWrittenAsZero) {
  v1::Plan plan = KeptPlan();
  plan.set_reason(std::string(5000, 'x'));
  EXPECT_EQ(PlanOf(PlanRow(plan))->reason().size(), kMaxLongText);
  plan.set_net_gain_seconds(std::numeric_limits<double>::quiet_NaN());
  const v1::Plan read = *PlanOf(RowOf("job", plan));
  EXPECT_EQ(read.reason().size(), kMaxLongText);
  EXPECT_TRUE(read.has_net_gain_seconds());
  EXPECT_EQ(read.net_gain_seconds(), 0);
}

TEST(ValueRowsTest, TypicalLoadsThatNoDaemonWritesAreRefused) {
  const TypicalLoad good{.load = std::make_shared<const Load>(
                             Load::FromCounts(LoadMatrix::Constant(2, 4, 3)).value())};
  const sqlite::Row row = RowOf("job", std::span(&good, 1));
  ASSERT_TRUE(TypicalLoadsOf(row).ok());
  const auto with = [&row](size_t cell, sqlite::Cell value) {
    sqlite::Row other = row;
    other[cell] = std::move(value);
    return TypicalLoadsOf(other).status();
  };
  EXPECT_EQ(with(1, int64_t{3}),
            absl::DataLossError("a typical load of 3 layers and 4 experts has 32 bytes"));
  EXPECT_EQ(with(2, int64_t{1} << 62).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(with(1, int64_t{-2}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(with(3, std::bit_cast<int64_t>(std::numeric_limits<double>::quiet_NaN())).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(with(4, int64_t{0}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(with(5, int64_t{-1}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(with(6, sqlite::Bytes{std::string(32, '\0')}),
            absl::DataLossError("a typical load: it has no tokens"));
  EXPECT_EQ(with(6, sqlite::Bytes{std::string(32, '\xff')}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(with(6, std::string("text")).code(), absl::StatusCode::kDataLoss);
  sqlite::Row longer = row;
  for (size_t i = 0; i < 4 * kMaxTypicalLoads; ++i) longer.push_back(row[3 + i % 4]);
  EXPECT_EQ(TypicalLoadsOf(longer).status().code(), absl::StatusCode::kDataLoss) << "too many";
}

}  // namespace
}  // namespace eplb
