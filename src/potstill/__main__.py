from potstill.cli import main

main()
