"""What is asked: queries as frozen data, and the SQL that they are written in."""
