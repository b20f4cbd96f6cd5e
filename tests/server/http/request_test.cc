#include "server/http/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(RequestTest, TheHeadIsTakenApart) {
  const auto request = ParseRequest(
      "GET /api/v1/jobs/a%20b+c?after=3&x=a+b%2F&flag#part HTTP/1.1\r\n"
      "Host: localhost\r\nLAST-event-id:  7 \r\n\r\nBody: ignored\r\n");
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->method, "GET");
  EXPECT_EQ(request->path, "/api/v1/jobs/a b+c");
  EXPECT_THAT(request->query,
              UnorderedElementsAre(Pair("after", "3"), Pair("x", "a b/"), Pair("flag", "")));
  EXPECT_FALSE(request->is_http_1_0);
  EXPECT_THAT(request->ValuesOf("Last-Event-ID"), ElementsAre("7"));
  EXPECT_THAT(request->ValuesOf("Body"), ElementsAre());
}

TEST(RequestTest, AnEscapeThatIsNoneStaysAsItIs) {
  const auto request = ParseRequest("HEAD /%zz%4%41%00 HTTP/1.0\n\n");
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->path, std::string("/%zz%4A\0", 8));
  EXPECT_TRUE(request->is_http_1_0);
}

TEST(RequestTest, WhatIsNoRequestIsRefused) {
  for (const char* head :
       {"", "\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/2.0\r\n\r\n",
        "get / HTTP/1.1\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n", "GET x HTTP/1.1\r\n\r\n",
        "GET /a b HTTP/1.1\r\n\r\n", "FOO / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n", "GET / HTTP/1.1\r\n: a\r\n\r\n",
        "GET / HTTP/1.1\r\nA: b\r\n folded: c\r\n\r\n"}) {
    EXPECT_FALSE(ParseRequest(head).has_value()) << head;
  }
}

TEST(RequestTest, AnAnswersHeadHasStatusTypeAndTheGivenLines) {
  EXPECT_EQ(AnswerHead(421, "text/plain", "A: b\r\n"),
            "HTTP/1.1 421 Misdirected Request\r\nContent-Type: text/plain\r\nA: b\r\n"
            "Connection: close\r\n");
}

}  // namespace
}  // namespace eplb
