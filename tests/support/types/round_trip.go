package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// main parses the event in each input line, and writes it as JSON again.
func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var event OrderPlaced
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			panic(err)
		}
		text, err := json.Marshal(event)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(text))
	}
}
