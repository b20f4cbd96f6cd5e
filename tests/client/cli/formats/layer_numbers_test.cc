#include "client/cli/formats/layer_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace eplb {
namespace {

TEST(LayerNumbersTest, ListsAndRangesAreReadAndWritten) {
  EXPECT_EQ(*ParseLayerNumbers("7"), LayerNumbers{7});
  EXPECT_EQ(*ParseLayerNumbers("1,3,5"), (LayerNumbers{1, 3, 5}));
  EXPECT_EQ(*ParseLayerNumbers("3-5"), (LayerNumbers{3, 4, 5}));
  EXPECT_EQ(*ParseLayerNumbers("3:5"), (LayerNumbers{3, 4, 5}));
  EXPECT_EQ(*ParseLayerNumbers("0,3-5,9:15:3"), (LayerNumbers{0, 3, 4, 5, 9, 12, 15}));
  for (const char* text : {"7", "0-4", "1:47:2", "1,4", "0,3-60", "3,7,8,20:40:10", "0,1,3-9"}) {
    EXPECT_EQ(LayerNumbersText(*ParseLayerNumbers(text)), text);
  }
}

TEST(LayerNumbersTest, WhatIsNoListIsRefused) {
  for (const char* text : {"", ",", "a", "-1", "5-3", "1,1", "3-5,4", "1:5:0", "1-2-3", "1:2:3:4",
                           "1048577", "99999999999", "1.5", "1, 2", "+1"}) {
    EXPECT_FALSE(ParseLayerNumbers(text).ok()) << text;
  }
  EXPECT_TRUE(ParseLayerNumbers("1048576").ok());
}

TEST(LayerNumbersTest, TheFlagNamesLayersAsTheCommandLineTakesThem) {
  EXPECT_EQ(ChoiceOf({3, 4, 5}).Flag(), "--first-layer 3");
  EXPECT_EQ(ChoiceOf({1, 3, 5}).Flag(), "--layers 1:5:2");
  EXPECT_EQ(LayerChoice().Flag(), "");
}

TEST(LayerNumbersTest, RowsAreChosenByTheirNumbers) {
  const LayerNumbers numbers = {1, 3, 5};
  EXPECT_THAT(*ChooseRows(numbers, {}), ::testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(*ChooseRows(numbers, {.first = 2}), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(*ChooseRows(numbers, {.list = {1, 5}}), ::testing::ElementsAre(0, 2));
  EXPECT_EQ(ChooseRows(numbers, {.first = 6}).status().message(),
            "has layers 1:5:2, --first-layer 6 leaves none of them");
  EXPECT_EQ(ChooseRows(numbers, {.list = {1, 2}}).status().message(),
            "has layers 1:5:2, --layers 1,2 names layer 2");
}

}  // namespace
}  // namespace eplb
