#include "client/cli/formats/load_doubts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace eplb {
namespace {

using ::testing::HasSubstr;

std::vector<LoadWindow> Window(const LoadMatrix& counts) {
  return {{.last_step = 9, .load = *Load::FromCounts(counts)}};
}

TEST(LoadDoubtsTest, AHeadingIsAnErrorInCsvAndANoteInArrays) {
  LoadMatrix counts(2, 4);
  counts << 0, 1, 2, 3, 10, 20, 30, 40;
  EXPECT_THAT(std::string(DoubtsAboutLoad(Window(counts), TableKind::kCsv).status().message()),
              HasSubstr("first row were a heading"));
  EXPECT_THAT(*DoubtsAboutLoad(Window(counts), TableKind::kArray), HasSubstr("is read as a load"));
  counts.row(0).setConstant(7);
  EXPECT_EQ(*DoubtsAboutLoad(Window(counts), TableKind::kCsv), "");
}

TEST(LoadDoubtsTest, ALongFormIsRefusedInEveryOrder) {
  LoadMatrix counts(4, 3);
  counts << 3, 0, 10, 4, 0, 30, 3, 1, 20, 4, 1, 40;
  EXPECT_THAT(std::string(DoubtsAboutLoad(Window(counts), TableKind::kArray).status().message()),
              HasSubstr("long form"));
  counts(0, 1) = 1;  // a place twice: no table in long form
  EXPECT_TRUE(DoubtsAboutLoad(Window(counts), TableKind::kArray).ok());
}

TEST(LoadDoubtsTest, AMapWithAHeadingIsRefusedAndAnIndexNoted) {
  IndexMatrix slots(2, 4);
  slots << 0, 1, 2, 3, 0, 1, 1, 0;
  EXPECT_FALSE(DoubtsAboutMap(slots).ok());
  IndexMatrix index(4, 3);
  index << 0, 1, 0, 1, 0, 1, 2, 1, 1, 3, 0, 0;
  EXPECT_THAT(*DoubtsAboutMap(index), HasSubstr("is read as a map"));
  EXPECT_EQ(*DoubtsAboutMap(IndexMatrix::Constant(2, 4, 1)), "");
}

TEST(LoadDoubtsTest, ArraysOfPlacementsAreKnownByName) {
  EXPECT_TRUE(NamesPlacement("physical_to_logical_map"));
  EXPECT_TRUE(NamesPlacement("phy2log"));
  EXPECT_FALSE(NamesPlacement("logical_count"));
}

}  // namespace
}  // namespace eplb
