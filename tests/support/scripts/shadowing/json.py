whose = "the script's own json"
