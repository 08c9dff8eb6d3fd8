// SPDX-License-Identifier: Apache-2.0
// A request as it comes in, piece by piece.
#pragma once

#include <boost/beast/core/error.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "hyperslab/serve/http_server.hpp"

namespace hyperslab::serve {

inline constexpr unsigned kHttp11 = 11;  ///< HTTP/1.1 as Beast counts versions

/// The reason why a request is not read on; status 0: there is none.
struct Refused {
  int status = 0;
  std::string text;
};

/// Keeps the parts of a request that the server reads. A request that another program could take
/// for one of another length is refused (RFC 9112, section 6.3), as are fields that may come once
/// and come twice. Fields behind the last chunk are dropped. put() may throw std::bad_alloc alone.
class RequestParser final : public boost::beast::http::basic_parser<true> {
 public:
  explicit RequestParser(const HttpLimits& limits);

  /// Reads bytes on, and returns how many of them it is done with. Error need_more: with more bytes
  /// behind those that are left it will go on. After any other error refused() has the reason.
  std::size_t read(std::string_view bytes, boost::beast::error_code& error);
  /// Refuses a request of more bytes than the caller keeps at a time.
  void refuse_size();
  [[nodiscard]] const Refused& refused() const { return refused_; }

  // Valid as soon as the header is done:
  [[nodiscard]] bool expects_continue() const;
  [[nodiscard]] unsigned version() const { return version_; }  ///< 11 is HTTP/1.1
  /// The body is valid as soon as all is done.
  [[nodiscard]] HttpRequest& request() { return request_; }

 private:
  using Error = boost::beast::error_code;
  using View = boost::beast::string_view;
  using Field = boost::beast::http::field;

  void on_request_impl(boost::beast::http::verb verb, View method, View target, int version,
                       Error& error) override;
  void on_response_impl(int /*code*/, View /*reason*/, int /*version*/, Error& /*error*/) override {
  }
  void on_field_impl(Field name, View name_text, View value, Error& error) override;
  void on_header_impl(Error& error) override;
  void on_body_init_impl(const boost::optional<std::uint64_t>& length, Error& error) override;
  std::size_t on_body_impl(View body, Error& error) override;
  void on_chunk_header_impl(std::uint64_t size, View extensions, Error& error) override;
  std::size_t on_chunk_body_impl(std::uint64_t remain, View body, Error& error) override;
  void on_finish_impl(Error& /*error*/) override {}
  /// Boost 1.90 and later call this for the fields behind the last chunk.
  virtual void on_trailer_field_impl(Field /*name*/, View /*name_text*/, View /*value*/,
                                     Error& /*error*/) {}

  [[nodiscard]] std::string* kept(Field name);
  void refuse(int status, std::string text, Error& error);
  void explain(const Error& error);

  HttpLimits limits_;
  HttpRequest request_;
  Refused refused_;
  std::set<Field> has_;  ///< fields that may come once and have come
  std::string length_;
  std::string coding_;
  std::string expect_;
  std::size_t header_bytes_ = 0;
  std::size_t extension_bytes_ = 0;
  unsigned version_ = 0;
  bool is_header_done_ = false;
};

}  // namespace hyperslab::serve
