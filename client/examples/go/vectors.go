package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"

	"payments/idempotent"
)

// checkVectors says how many examples of that file hold, or which does not. A
// part is written in hex; `hex*n` is n times those bytes.
func checkVectors(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	rows := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")[1:]
	for _, row := range rows {
		columns := strings.Split(row, "\t") // name, number of parts, parts, digest
		parts, err := parseParts(columns[1], columns[2])
		if err != nil {
			return 0, fmt.Errorf("%s: %w", columns[0], err)
		}
		if hex.EncodeToString(idempotent.RequestHash(parts...)) != columns[3] {
			return 0, fmt.Errorf("%s: the request hash is another one", columns[0])
		}
	}
	return len(rows), nil
}

func parseParts(count, list string) (parts [][]byte, err error) {
	if count == "0" {
		return nil, nil
	}
	for _, part := range strings.Split(list, ",") {
		digits, times, repeated := strings.Cut(part, "*")
		n := 1
		if repeated {
			if n, err = strconv.Atoi(times); err != nil {
				return nil, err
			}
		}
		raw, err := hex.DecodeString(digits)
		if err != nil {
			return nil, err
		}
		parts = append(parts, bytes.Repeat(raw, n))
	}
	return parts, nil
}
