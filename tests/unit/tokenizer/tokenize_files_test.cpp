// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <csignal>

#include "hyperslab/io/tokenizer.hpp"
#include "tokenizer/document_reader.hpp"
#include "unit/dataset/files.hpp"

namespace hyperslab::test {
namespace {

class TokenizeFiles : public FilesTest {
 protected:
  std::int64_t tokenize(const std::vector<std::string>& inputs, const std::string& output) {
    return io::tokenize_files(*io::open_tokenizer("bytes"), inputs, path(output));
  }
  /// What the reader gives, with | for the end of a document.
  std::string pieces(const std::string& text) {
    io::DocumentReader reader(write("in.txt", text));
    std::string out;
    for (io::DocumentReader::Piece piece; !piece.ends_file;) {
      piece = reader.next();
      out += piece.text;
      if (piece.ends_document) out += '|';
    }
    return out;
  }
  /// The tokens of the file as text, with | for the end of a document.
  std::string text_of(const std::string& name) {
    std::string text;
    for (const std::int32_t id : read_all(*io::open_tokens({path(name)}, "uint16", 257, 1))) {
      text += id == 256 ? '|' : static_cast<char>(id);
    }
    return text;
  }
  std::string documents(const std::string& text) {
    tokenize({write("in.txt", text)}, "documents.bin");
    return text_of("documents.bin");
  }
};

/// Files may not grow beyond `bytes` while this lives: writing fails as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(TokenizeFiles, WritesEveryFormat) {
  const auto a = write("a.txt", "ab");
  const auto b = write("b.txt", "c\n");

  for (const char* output : {"t.bin", "t.npy", "t.h5"}) {
    EXPECT_EQ(tokenize({a, b}, output), 6);
    EXPECT_EQ(text_of(output), "ab|c\n|");
  }
}

TEST_F(TokenizeFiles, AMarkerLineEndsADocument) {
  EXPECT_EQ(documents("one\n<|endoftext|>\ntwo\n<|endoftext|>\n"), "one\n|two\n|");
  EXPECT_EQ(documents("one\r\n<|endoftext|>\r\ntwo"), "one\r\n|two|");
  EXPECT_EQ(documents("one\n<|endoftext|>"), "one\n|");
  EXPECT_EQ(documents("<|endoftext|>\n<|endoftext|>\none"), "one|");
  EXPECT_EQ(documents(""), "|");
  EXPECT_EQ(documents("<|endoftext|>\n"), "|");
}

TEST_F(TokenizeFiles, AMarkerWithinALineIsText) {
  EXPECT_EQ(documents("x <|endoftext|>\ny"), "x <|endoftext|>\ny|");
  EXPECT_EQ(documents("<|endoftext|> y\n"), "<|endoftext|> y\n|");
  EXPECT_EQ(documents("<|endoftext|><|endoftext|>\n"), "<|endoftext|><|endoftext|>\n|");
}

TEST_F(TokenizeFiles, MarkersAreFoundWhereverTheBufferEnds) {
  constexpr std::size_t kBuffer = 8 << 20;
  for (const std::size_t before : {kBuffer, kBuffer - 1, kBuffer - 7, kBuffer - 13, kBuffer - 14,
                                   kBuffer - 15, kBuffer / 2 - 3}) {
    for (const char filler : {'a', '\n'}) {
      std::string expected(before - 1, filler);
      expected += '\n';
      const std::string text = expected + "<|endoftext|>\nlast";
      expected += "|last";

      EXPECT_TRUE(pieces(text) == expected) << before << " of " << int(filler);
    }
  }
}

TEST_F(TokenizeFiles, PiecesAreBoundedAndKeepWordsAndCharactersWhole) {
  std::string lines;
  while (lines.size() < (20 << 20)) lines += "It was a day like any other,  \n\n and cold.\nSo ";
  std::string characters;
  while (characters.size() < (20 << 20)) characters += "\xE2\x82\xAC";

  for (const std::string& text : {lines, characters}) {
    io::DocumentReader reader(write("in.txt", text));
    std::string back;
    for (io::DocumentReader::Piece piece; !piece.ends_file;) {
      piece = reader.next();
      EXPECT_LE(piece.text.size(), 8U << 20);
      back += piece.text;
      if (piece.ends_file) break;
      EXPECT_NE(text[back.size()] & 0xC0, 0x80);
      EXPECT_TRUE(&text != &lines || piece.text.ends_with("cold.\n"));
    }
    EXPECT_TRUE(back == text);
  }
}

TEST_F(TokenizeFiles, NamesInputsThatCannotBeRead) {
  expect_error(ExitCode::data, {path("missing.txt"), "No such file"},
               [&] { tokenize({path("missing.txt")}, "t.bin"); });
  expect_error(ExitCode::data, {folder_.string(), "a directory"},
               [&] { tokenize({folder_.string()}, "t.bin"); });
  expect_error(ExitCode::usage, {"--input"}, [&] { tokenize({}, "t.bin"); });
  EXPECT_EQ(number_of_files(), 0U);
}

TEST_F(TokenizeFiles, LeavesNothingWhereStorageIsFull) {
  const auto input = write("in.txt", std::string(6 << 20, 'x'));
  write("old.bin", "old");

  for (const char* output : {"t.bin", "t.npy", "t.h5", "old.bin"}) {
    // Half of the ids; of an .h5 all ids, but not what HDF5 adds to them.
    for (const rlim_t limit : {rlim_t{6} << 20, rlim_t{12} << 20}) {
      const FileSizeLimit full(limit);
      expect_error(ExitCode::storage, {path(output), "File too large", "free space"},
                   [&] { tokenize({input}, output); });
    }
  }

  EXPECT_EQ(number_of_files(), 2U);
  EXPECT_EQ(content("old.bin"), "old");
}

TEST_F(TokenizeFiles, NamesOutputsThatCannotBeWritten) {
  const auto input = write("in.txt", "x");
  std::filesystem::create_directory(folder_ / "folder.npy");

  expect_error(ExitCode::storage, {path("no/t.bin"), "No such file or directory"},
               [&] { tokenize({input}, "no/t.bin"); });
  expect_error(ExitCode::storage, {path("folder.npy"), "Is a directory"},
               [&] { tokenize({input}, "folder.npy"); });
  expect_error(ExitCode::storage, {path("in.txt/t.h5"), "Not a directory"},
               [&] { tokenize({input}, "in.txt/t.h5"); });
  expect_error(ExitCode::usage, {path("t.tokens")}, [&] { tokenize({input}, "t.tokens"); });
  EXPECT_EQ(number_of_files(), 2U);
}

}  // namespace
}  // namespace hyperslab::test
